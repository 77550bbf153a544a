//! A copy of the server's installation, to which a test can add versions of the extension: there is no other
//! way to show a server of before 18 a script that is not installed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::cluster::pg_config;

/// Makes the copy, and returns where its programs are and where its extensions. The server finds the rest from where
/// it is itself, so it is a real file, in the same place towards the others; the rest are links.
pub fn copy(folder: &Path) -> (PathBuf, PathBuf) {
    let _ = fs::remove_dir_all(folder);
    let [bin, share, modules, libraries] =
        ["--bindir", "--sharedir", "--pkglibdir", "--libdir"].map(|which| PathBuf::from(pg_config(which)));
    let root = bin.ancestors().find(|root| share.starts_with(root) && modules.starts_with(root));
    let root = root.expect("the root folder, at least").to_owned();
    let copied = |place: &Path| folder.join(place.strip_prefix(&root).expect("below the root"));
    let made = |place: &Path| {
        fs::create_dir_all(copied(place)).expect("make a folder");
        copied(place)
    };
    for program in entries(&bin) {
        let name = made(&bin).join(program.file_name().expect("a name"));
        let real = program.ends_with("postgres") && fs::hard_link(&program, &name).is_ok();
        if !real && program.ends_with("postgres") {
            fs::copy(&program, &name).expect("copy the server");
        } else if !real {
            symlink(&program, &name).expect("link a program");
        }
    }
    for place in [&libraries, &modules] {
        if place.starts_with(&root) && !copied(place).exists() {
            made(place.parent().expect("a parent"));
            symlink(place, copied(place)).expect("link a folder");
        }
    }
    let extensions = share.join("extension");
    for place in [&share, &extensions] {
        for entry in entries(place).into_iter().filter(|entry| *entry != extensions) {
            symlink(&entry, made(place).join(entry.file_name().expect("a name"))).expect("link a file");
        }
    }
    (copied(&bin), copied(&extensions))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.expect("an entry").path()).collect()
}
