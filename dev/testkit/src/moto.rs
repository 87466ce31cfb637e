//! A server of S3 for tests: moto's. Pages of its lists have three names.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server of S3 in a process of its own, which ends with this.
pub struct Moto {
    port: u16,
    child: Child,
}

impl Moto {
    /// `None` if there is none on this machine.
    pub fn start() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new("moto_server")
            .env("MOTO_S3_DEFAULT_MAX_KEYS", "3")
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = child else {
            println!("skipped: there is no moto_server here (pip install 'moto[server]')");
            return None;
        };
        let moto = Self { port, child };
        let up = (0..600).any(|_| {
            std::thread::sleep(Duration::from_millis(50));
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        assert!(up, "moto does not listen");
        Some(moto)
    }

    /// As `--repo` takes it.
    pub fn repo(&self, path: &str) -> String {
        format!("s3:http://127.0.0.1:{}/{path}", self.port)
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
