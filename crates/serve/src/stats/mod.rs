//! Tells what was measured: to `leandisk stats` over a socket, to Prometheus, in vscsiStats' own table.

mod control;
mod corrupt;
mod csv;
mod endpoint;
mod export_stats;
mod moment;
mod prometheus;
mod question;

pub use control::{StatsServer, query, socket_beside};
pub use corrupt::Corrupt;
pub use csv::vscsi_stats;
pub use export_stats::ExportStats;
pub use moment::MomentOfServer;
pub use prometheus::{MetricsServer, metrics};
pub use question::{Answer, Question};
