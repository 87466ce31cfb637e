//! Tells what was measured: to `leandisk stats` over a socket, to Prometheus, in vscsiStats' own table.

mod control;
mod csv;
mod endpoint;
mod prometheus;

pub use control::{Answer, ExportStats, Question, StatsServer, query, socket_beside};
pub use csv::vscsi_stats;
pub use prometheus::{MetricsServer, metrics};
