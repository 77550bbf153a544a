//! A copy of the server's installation, in which a test can add or remove versions of the extension. Before 18, a
//! server has no other way to find a script that is not installed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::cluster::pg_config;

/// Where a copied server has its files.
pub struct Installation {
    /// Its programs.
    pub programs: PathBuf,
    /// The libraries that it loads.
    pub modules: PathBuf,
    /// The control files and scripts of its extensions.
    pub extensions: PathBuf,
}

impl Installation {
    /// Makes the copy. The server finds its files relative to its own binary, so the binary is a real file and the
    /// others are links.
    pub fn copy(folder: &Path) -> Self {
        let _ = fs::remove_dir_all(folder);
        let [programs, libraries, modules, share] = ["--bindir", "--libdir", "--pkglibdir", "--sharedir"]
            .map(|which| PathBuf::from(pg_config(which)));
        let extensions = share.join("extension");
        let root = programs
            .ancestors()
            .find(|root| share.starts_with(root) && modules.starts_with(root))
            .expect("/");
        let copied = |place: &Path| folder.join(place.strip_prefix(root).expect("below the root"));
        let mut places = vec![&programs, &libraries, &modules, &share, &extensions];
        places.retain(|place| place.starts_with(root));
        for place in &places {
            fs::create_dir_all(copied(place)).expect("make a folder");
            for original in entries(place) {
                let name = copied(&original);
                if original.ends_with("postgres") {
                    fs::hard_link(&original, &name)
                        .or_else(|_| fs::copy(&original, &name).map(drop))
                        .expect("copy the server");
                } else if !places.iter().any(|place| place.starts_with(&original)) && !name.exists() {
                    symlink(&original, name).expect("link a file");
                }
            }
        }
        Self { programs: copied(&programs), modules: copied(&modules), extensions: copied(&extensions) }
    }

    /// Removes an extension: the library and the files in the folder of extensions. Returns how many files there
    /// were.
    pub fn remove(&self, extension: &str) -> usize {
        let of_it = |file: &PathBuf| {
            file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(extension))
        };
        let files = [&self.modules, &self.extensions].into_iter().flat_map(|place| entries(place));
        files.filter(of_it).map(|file| fs::remove_file(file).expect("remove a link")).count()
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.expect("an entry").path()).collect()
}
