//! TLS on both sides of the dashboard: to PostgreSQL and to browsers.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use queue_ext_tests::secured::{Secured, authority, certificate, openssl};
use queue_ext_tests::{SOON, eventually};

use super::fill::fill;
use super::program::{Dashboard, refused};
use super::start;

/// What a client that trusts only this authority gets from the dashboard; nothing if it does not trust it.
fn ask(dashboard: &Dashboard, folder: &Path, authority: &str) -> String {
    let mut client = Command::new("openssl")
        .current_dir(folder)
        .args(["s_client", "-quiet", "-verify_return_error", "-verify_hostname", "localhost"])
        .args(["-CAfile", authority, "-connect", &dashboard.address])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("run openssl");
    // The client can have ended, because it refuses the certificate.
    let mut requests = client.stdin.take().expect("its input");
    let _ = requests.write_all(b"GET /api/session HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let answer = client.wait_with_output().expect("an answer");
    drop(requests);
    String::from_utf8_lossy(&answer.stdout).into_owned()
}

#[test]
fn browsers_get_tls_and_a_renewed_certificate_without_a_restart() {
    let Some(cluster) = start("tls") else { return };
    fill(&mut cluster.connect());
    let folder = cluster.folder();
    authority(folder, "ca");
    authority(folder, "other");
    certificate(folder, "ca");
    let file = |name: &str| folder.join(name).display().to_string();
    let (crt, key) = (file("server.crt"), file("server.key"));
    let dashboard = Dashboard::start(&cluster, "oncall", &["--tls-cert", &crt, "--tls-key", &key]);
    assert!(dashboard.log().contains("queue dashboard: https://127.0.0.1:"), "{}", dashboard.log());
    assert!(ask(&dashboard, folder, "ca.crt").contains("hide_payloads"));
    assert_eq!(ask(&dashboard, folder, "other.crt"), "");

    // Between the renewal of the two files, and while one cannot be read, the certificate before is used.
    fs::copy(&crt, file("before.crt")).expect("copy");
    fs::write(&crt, "not a certificate").expect("write");
    assert!(ask(&dashboard, folder, "ca.crt").contains("hide_payloads"));
    assert!(dashboard.log().contains("the new certificate is not used: --tls-cert"), "{}", dashboard.log());
    certificate(folder, "other");
    eventually("the new certificate is used", SOON, || {
        ask(&dashboard, folder, "other.crt").contains("hide_payloads")
    });
    assert_eq!(ask(&dashboard, folder, "ca.crt"), "");

    // What is wrong is named before it listens.
    openssl(folder, "genrsa -aes128 -passout pass:secret -out locked.key 2048");
    let url = Some("host=/nowhere user=oncall");
    for (arguments, complaint) in [
        (vec!["--tls-cert", &crt], "--tls-cert needs --tls-key"),
        (vec!["--tls-key", &key], "--tls-key needs --tls-cert"),
        (vec!["--tls-cert", "/nowhere/a.crt", "--tls-key", &key], "--tls-cert /nowhere/a.crt: No such file"),
        (vec!["--tls-cert", &crt, "--tls-key", "/nowhere/a.key"], "--tls-key /nowhere/a.key: No such file"),
        (vec!["--tls-cert", &key, "--tls-key", &key], "has no certificate"),
        (vec!["--tls-cert", &crt, "--tls-key", &crt], "has no unencrypted key"),
        (vec!["--tls-cert", &crt, "--tls-key", &file("locked.key")], "has no unencrypted key"),
        (vec!["--tls-cert", &crt, "--tls-key", &file("ca.key")], "--tls-key"),
    ] {
        let done = refused(&arguments, url);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(2) && said.contains(complaint), "{arguments:?}: {said}");
    }
}

#[test]
fn the_connection_to_postgres_uses_tls_as_that_of_the_other_commands() {
    if queue_ext_tests::brief() {
        return;
    }
    let server = Secured::start("dashboard-tls-postgres");
    let overview = |more: &str| {
        let dashboard = Dashboard::at(&server.url(&format!("password=se:cret {more}")), &[]);
        dashboard.get("/api/queue?name=default")
    };
    let file = |name: &str| server.cluster.folder().join(name).display().to_string();
    let right = overview(&format!("sslmode=verify-full sslrootcert={}", file("ca.crt")));
    assert_eq!((right.status, right.json()["name"].as_str()), (200, Some("default")), "{}", right.body);
    let wrong = overview(&format!("sslmode=verify-full sslrootcert={}", file("other.crt")));
    assert!(wrong.status == 503 && wrong.body.contains("certificate"), "{}", wrong.body);
    let plain = overview("sslmode=disable");
    assert!(plain.status == 503 && plain.body.contains("pg_hba.conf"), "{}", plain.body);
}
