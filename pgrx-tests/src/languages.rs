//! The languages of the example workers: how a program is built and started with what `servers.py languages` has
//! downloaded. Each function returns nothing if the language is missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cluster::{bindir, home};

/// Makes a command that starts a program, as often as one likes.
pub type Start = Box<dyn Fn() -> Command + Send + Sync>;

/// A file or folder that was fetched.
fn fetched(path: &str) -> Option<PathBuf> {
    let path = home().join("languages").join(path);
    path.exists().then_some(path)
}

/// The folder of Debian's libraries for this processor.
fn libraries() -> String {
    format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH)
}

/// The search path of the dynamic linker, including the downloaded libraries.
fn linked() -> Option<String> {
    let more = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    Some(format!("{}:{more}", fetched(&libraries())?.display()))
}

/// The folder for built programs.
fn built() -> PathBuf {
    let folder = home().join("built");
    fs::create_dir_all(&folder).expect("create a folder");
    folder
}

fn there(program: &str) -> bool {
    let said = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    said.is_ok_and(|status| status.success())
}

fn build(command: &mut Command) {
    let done = command.stdin(Stdio::null()).output().expect("start a compiler");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?} failed:\n{}{said}", String::from_utf8_lossy(&done.stdout));
}

/// Python, with the drivers that PYTHONPATH leads to.
pub fn python(program: &Path) -> Option<Start> {
    let program = program.to_owned();
    Some(Box::new(move || {
        let mut command = Command::new("python3");
        command.arg(&program);
        command
    }))
}

/// A file of the checkout.
fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Python, with the client library and what it is tested with.
pub fn python_client(program: &Path) -> Option<Start> {
    let start = python(program)?;
    let drivers = std::env::var("PYTHONPATH").unwrap_or_default();
    let path = [own("clients/python"), home().join("libraries/python"), drivers.into()];
    let path = std::env::join_paths(path).expect("paths without colons");
    Some(Box::new(move || {
        let mut command = start();
        command.env("PYTHONPATH", &path);
        command
    }))
}

/// Copies a file that other tests may be reading or copying: it is replaced at once, and only if it differs.
fn keep_copy(from: &Path, to: &Path) {
    let wanted = fs::read(from).expect("read a file");
    if fs::read(to).ok().as_ref() != Some(&wanted) {
        let mut new = to.as_os_str().to_owned();
        new.push(format!(".{}.{:?}", std::process::id(), std::thread::current().id()));
        fs::write(&new, wanted).expect("write a copy");
        fs::rename(new, to).expect("replace a file");
    }
}

/// node, with the client library. It looks for the driver from where the library is, so a copy is made beside the driver.
pub fn node_client(program: &Path) -> Option<Start> {
    there("node").then_some(())?;
    let (program, libraries) = (program.to_owned(), home().join("libraries"));
    let (from, to) = (own("clients/typescript/dist"), libraries.join("queue-ext/dist"));
    libraries.join("node_modules").exists().then_some(())?;
    fs::create_dir_all(&to).expect("create a folder");
    keep_copy(&own("clients/typescript/package.json"), &libraries.join("queue-ext/package.json"));
    for file in fs::read_dir(from).expect("the client library").map(|file| file.expect("a file")) {
        keep_copy(&file.path(), &to.join(file.file_name()));
    }
    Some(Box::new(move || {
        let mut command = Command::new("node");
        command
            .arg(&program)
            .env("QUEUE_EXT_CLIENT", to.join("index.js"))
            .env("QUEUE_EXT_LIBRARIES", &libraries);
        command
    }))
}

/// bash, with the server's own psql.
pub fn bash(program: &Path) -> Option<Start> {
    let program = program.to_owned();
    let path = format!("{}:{}", bindir().display(), std::env::var("PATH").expect("PATH"));
    Some(Box::new(move || {
        let mut command = Command::new("bash");
        command.arg(&program).env("PATH", &path);
        command
    }))
}

/// node looks for modules beside the program, so the program is copied beside them.
pub fn node(program: &Path) -> Option<Start> {
    let modules = fetched("node_modules")?;
    there("node").then_some(())?;
    let copy = modules.with_file_name(program.file_name().expect("a file"));
    keep_copy(program, &copy);
    Some(Box::new(move || {
        let mut command = Command::new("node");
        command.arg(&copy);
        command
    }))
}

/// Ruby, with the paths of its libraries, because they are not where it was built for.
pub fn ruby(program: &Path) -> Option<Start> {
    let (ruby, program) = (fetched("usr/bin/ruby3.1")?, program.to_owned());
    let own = libraries();
    let folders = ["usr/lib/ruby/vendor_ruby", &format!("{own}/ruby/vendor_ruby/3.1.0")]
        .into_iter()
        .chain(["usr/lib/ruby/3.1.0", &format!("{own}/ruby/3.1.0")])
        .map(|folder| fetched(folder).map(|path| path.display().to_string()))
        .collect::<Option<Vec<_>>>()?;
    let linked = linked()?;
    Some(Box::new(move || {
        let mut command = Command::new(&ruby);
        command.env("RUBYLIB", folders.join(":")).env("LD_LIBRARY_PATH", &linked);
        command.arg("--disable-gems").arg(&program);
        command
    }))
}

/// PHP, without the system's settings and with PDO.
pub fn php(program: &Path) -> Option<Start> {
    let (php, extensions) = (fetched("usr/bin/php8.2")?, fetched("usr/lib/php/20220829")?);
    let (program, linked) = (program.to_owned(), linked()?);
    Some(Box::new(move || {
        let mut command = Command::new(&php);
        command
            .env("LD_LIBRARY_PATH", &linked)
            .arg("-n")
            .arg("-d")
            .arg(format!("extension_dir={}", extensions.display()));
        command.args(["-d", "extension=pdo", "-d", "extension=pdo_pgsql"]).arg(&program);
        command
    }))
}

/// Java: compiled by the machine's own, if it has one.
pub fn java(program: &Path) -> Option<Start> {
    let driver = fetched("usr/share/java/postgresql.jar")?;
    there("javac").then_some(())?;
    let class = program.file_stem().expect("a name").to_owned();
    let classes = built().join("java").join(&class);
    build(Command::new("javac").arg("-nowarn").arg("-d").arg(&classes).arg(program));
    Some(Box::new(move || {
        let mut command = Command::new("java");
        // The options for a fast start and little memory.
        command.args(["-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]);
        command.arg(format!("{}:{}", classes.display(), driver.display())).arg(&class);
        command
    }))
}

/// Go, with pgx as Debian has it: in one tree, without modules.
pub fn go(program: &Path) -> Option<Start> {
    let root = fetched("usr/lib/go-1.19")?;
    let binary = built().join(program.parent()?.file_name()?);
    let mut command = Command::new(root.join("bin/go"));
    command.env("GOROOT", &root).env("GOPATH", fetched("usr/share/gocode")?);
    command.env("GO111MODULE", "off").env("CGO_ENABLED", "0").env("GOCACHE", home().join("built/go-cache"));
    build(command.args(["build", "-o"]).arg(&binary).arg(program));
    Some(Box::new(move || Command::new(&binary)))
}

/// A program of the example crate, named as its file.
pub fn rust(program: &Path) -> Option<Start> {
    let manifest = program.ancestors().map(|folder| folder.join("Cargo.toml")).find(|file| file.exists())?;
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/examples");
    let name = program.file_stem().expect("a name").to_str().expect("a plain name");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--locked", "--bin", name, "--manifest-path"]).arg(manifest);
    build(cargo.arg("--target-dir").arg(&target));
    let binary = target.join("debug").join(name);
    Some(Box::new(move || Command::new(&binary)))
}
