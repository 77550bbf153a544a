//! PgBouncer in transaction mode, in front of a server.

use std::path::PathBuf;
use std::process::Child;

use postgres::{Client, Config, NoTls};

use crate::cluster::{Cluster, home};
use crate::wait::{SOON, eventually};

/// Its port, which is that of its socket beside the server's too.
pub const PORT: u16 = 6432;

/// A running PgBouncer; it ends with this value.
pub struct PgBouncer {
    process: Child,
    config: Config,
}

impl PgBouncer {
    /// Starts it with so many server connections, and more lines for its settings.
    pub fn start(cluster: &Cluster, pool: usize, more: &str) -> Self {
        let folder = cluster.folder().display();
        let ini = cluster.folder().join("pgbouncer.ini");
        // auth_type any requires a user for each database.
        let text = format!(
            "[databases]\npostgres = user=postgres host={folder}\n[pgbouncer]\nlisten_port = {PORT}\n\
             unix_socket_dir = {folder}\nauth_type = any\npool_mode = transaction\ndefault_pool_size = {pool}\n\
             max_client_conn = 300\nlogfile = {folder}/pgbouncer.log\npidfile = {folder}/pgbouncer.pid\n\
             ignore_startup_parameters = extra_float_digits\n{more}\n"
        );
        std::fs::write(&ini, text).expect("write the settings");
        let process = cluster.start_program(&program(), &["-q", ini.to_str().expect("a plain path")]);
        let mut config = cluster.config("postgres");
        config.port(PORT);
        let bouncer = Self { process, config };
        eventually("PgBouncer takes connections", SOON, || bouncer.config.connect(NoTls).is_ok());
        bouncer
    }

    /// A connection through it.
    pub fn connect(&self) -> Client {
        self.config.connect(NoTls).expect("connect to PgBouncer")
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Where it is: beside the server, as Debian's packages have it.
fn program() -> PathBuf {
    home().join("debian/usr/sbin/pgbouncer")
}
