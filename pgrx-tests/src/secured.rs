//! A server that accepts TLS connections and passwords only, and the certificates of tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::cluster::{give_away, own_address, run_folder};
use crate::{Cluster, Settings, run};

/// Runs openssl in a folder.
pub fn openssl(folder: &Path, arguments: &str) {
    let done =
        Command::new("openssl").current_dir(folder).args(arguments.split(' ')).output().expect("run openssl");
    assert!(done.status.success(), "{arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Makes the certificate `NAME.crt` of an authority, with the key `NAME.key`.
pub fn authority(folder: &Path, name: &str) {
    openssl(
        folder,
        &format!(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -keyout {name}.key -out {name}.crt -subj /CN=authority"
        ),
    );
}

/// Makes the certificate `server.crt` for the name `localhost`, from this authority, with the key `server.key`.
pub fn certificate(folder: &Path, authority: &str) {
    openssl(folder, "req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=localhost");
    fs::write(folder.join("names"), "subjectAltName=DNS:localhost").expect("write");
    openssl(
        folder,
        &format!(
            "x509 -req -in server.csr -CA {authority}.crt -CAkey {authority}.key -CAcreateserial -days 2 -extfile names -out server.crt"
        ),
    );
}

/// The server, at an address of its own.
pub struct Secured {
    /// The server.
    pub cluster: Cluster,
    /// Where it listens.
    pub address: String,
}

impl Secured {
    /// Starts it. Its certificate is for the name `localhost`, and made by an authority whose certificate is `ca.crt`;
    /// `other.crt` is another's.
    pub fn start(name: &str) -> Self {
        let address = own_address();
        let extra = format!(
            "listen_addresses = '{address}'\nssl = on\nssl_cert_file = 'server.crt'\nssl_key_file = 'server.key'\n"
        );
        let settings = Settings { preload: true, extra: extra.leak() };
        let mut cluster = Cluster::create(&run_folder(name), &settings);
        let data = cluster.data();
        let data = Path::new(&data);
        let folder = cluster.folder();
        authority(folder, "ca");
        authority(folder, "other");
        certificate(folder, "ca");
        for name in ["server.crt", "server.key"] {
            fs::copy(folder.join(name), data.join(name)).expect("copy");
            fs::set_permissions(data.join(name), fs::Permissions::from_mode(0o600)).expect("permissions");
            give_away(&data.join(name));
        }
        let hba = "local all all trust\nhostssl all all 0.0.0.0/0 scram-sha-256\n";
        fs::write(data.join("pg_hba.conf"), hba).expect("write pg_hba.conf");
        cluster.launch();
        run(
            &mut cluster.connect(),
            "CREATE EXTENSION queue_ext; CREATE ROLE ann LOGIN SUPERUSER PASSWORD 'se:cret'",
        );
        Self { cluster, address }
    }

    /// The connection string of the role `ann`, without her password.
    pub fn url(&self, more: &str) -> String {
        format!("host=localhost hostaddr={} dbname=postgres user=ann {more}", self.address)
    }
}
