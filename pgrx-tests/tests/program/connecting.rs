//! How the program finds the database: variables, service files, password files, and TLS.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use queue_ext_tests::secured::Secured;
use queue_ext_tests::{SOON, eventually, number};

use super::run::{Answer, Worker, answer, program};

fn top(url: &str, variables: &[(&str, &str)]) -> Answer {
    let mut command = program();
    command.args(["top", "--json"]).envs(variables.iter().copied());
    if !url.is_empty() {
        command.args(["--url", url]);
    }
    answer(command, "")
}

#[test]
fn each_sslmode_trusts_what_it_trusts_in_psql() {
    let server = Secured::start("program-tls");
    let file = |name: &str| server.cluster.folder().join(name).display().to_string();
    let try_it = |more: &str| top(&server.url(&format!("password=se:cret {more}")), &[]);
    for mode in ["", "sslmode=prefer", "sslmode=require"] {
        try_it(mode).text();
    }
    try_it("sslmode=disable").refusal(1, "no pg_hba.conf entry");
    try_it("sslmode=maybe").refusal(1, "sslmode maybe");
    for mode in ["verify-ca", "verify-full"] {
        try_it(&format!("sslmode={mode}")).refusal(1, "need a root certificate");
        try_it(&format!("sslmode={mode} sslrootcert={}", file("ca.crt"))).text();
        try_it(&format!("sslmode={mode} sslrootcert={}", file("other.crt"))).refusal(1, "certificate");
        try_it(&format!("sslmode={mode} sslrootcert={}", file("none.crt"))).refusal(1, "none.crt");
    }
    // As in libpq, a root certificate turns "require" into "verify-ca".
    try_it(&format!("sslmode=require sslrootcert={}", file("other.crt"))).refusal(1, "certificate");
    // The certificate is for another name.
    let named = |mode: &str| {
        let url = format!(
            "host={} dbname=postgres user=ann password=se:cret sslmode={mode} sslrootcert={}",
            server.address,
            file("ca.crt")
        );
        top(&url, &[])
    };
    named("verify-ca").text();
    named("verify-full").refusal(1, "certificate");
    // The authorities of the system do not include this one, and a weaker mode with them is refused.
    try_it("sslrootcert=system").refusal(1, "certificate");
    try_it("sslrootcert=system sslmode=require").refusal(1, "verify-full");
    // SCRAM is bound to the channel.
    try_it("sslmode=require channel_binding=require").text();

    let home = server.cluster.folder().join("home");
    fs::create_dir_all(&home).expect("a folder");
    let password_file = home.join(".pgpass");
    fs::write(&password_file, "# comment\nlocalhost:*:postgres:ann:se\\:cret\n").expect("write");
    let home = home.display().to_string();
    fs::set_permissions(&password_file, fs::Permissions::from_mode(0o600)).expect("permissions");
    top(&server.url(""), &[("HOME", &home)]).text();
    top(&server.url("port=1"), &[("HOME", &home)]).refusal(1, "cannot connect");
    fs::set_permissions(&password_file, fs::Permissions::from_mode(0o644)).expect("permissions");
    top(&server.url(""), &[("HOME", &home)]).refusal(1, "chmod 600");
    let elsewhere = server.cluster.folder().join("passwords");
    fs::write(&elsewhere, "*:*:*:*:se\\:cret\n").expect("write");
    fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o600)).expect("permissions");
    top(&server.url(""), &[("PGPASSFILE", &elsewhere.display().to_string())]).text();
    top(&server.url(""), &[("PGPASSWORD", "wrong")]).refusal(1, "28P01");

    let services = server.cluster.folder().join("services.conf");
    let lines = format!(
        "[other]\nhost=/nonexistent\n\n[shop]\nhost=localhost\nhostaddr={}\ndbname=postgres\nuser=ann\npassword=se:cret\nsslmode=require\n",
        server.address
    );
    fs::write(&services, lines).expect("write");
    let services = services.display().to_string();
    top("service=shop", &[("PGSERVICEFILE", &services)]).text();
    top("", &[("PGSERVICEFILE", &services), ("PGSERVICE", "shop"), ("PGUSER", "nobody")]).text();
    top("service=shop user=nobody", &[("PGSERVICEFILE", &services)]).refusal(1, "28");
    top("service=shopp", &[("PGSERVICEFILE", &services)]).refusal(1, "shopp");
    // The first host that accepts is used.
    let url = format!("postgresql://ann:se%3Acret@127.0.0.1:1,{}:5432/postgres", server.address);
    top(&url, &[]).text();
    top("", &[("DATABASE_URL", &url)]).text();
    top("hots=x", &[]).refusal(1, "unknown connection parameter \"hots\"");

    // A worker's wait is cancelled over TLS.
    let mut command = program();
    command.env("DATABASE_URL", format!("{url}?sslmode=require"));
    let mut worker = Worker::run(command, &["default", "--", "true"]);
    let waiting = "SELECT count(*) FROM queue.workers WHERE waiting = 1";
    eventually("it waits", SOON, || number(&mut server.cluster.connect(), waiting) == 1);
    assert_eq!(worker.end(), Some(0));
    assert!(server.cluster.log().contains("canceling statement due to user request"));
}
