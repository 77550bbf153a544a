//! The pages: every Markdown file that a reader may come across.

use std::fs;
use std::path::{Path, PathBuf};

/// The top of the source tree.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a parent")
}

/// A page: its path below the root, and its text.
pub struct Page {
    pub path: PathBuf,
    pub text: String,
}

/// All pages, in order: those at the top, and those of the folders that have documents.
pub fn pages() -> Vec<Page> {
    let mut paths = Vec::new();
    markdown_files(root(), false, &mut paths);
    for folder in ["bench", "docs", "examples", "pgrx-tests", "sql"] {
        markdown_files(&root().join(folder), true, &mut paths);
    }
    paths.sort();
    paths
        .into_iter()
        .map(|path| Page {
            text: fs::read_to_string(&path).expect("read a page"),
            path: path.strip_prefix(root()).expect("below the root").to_owned(),
        })
        .collect()
}

fn markdown_files(folder: &Path, deep: bool, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.expect("a file").path()) {
        if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        } else if deep && path.is_dir() && !path.ends_with("node_modules") {
            markdown_files(&path, true, found);
        }
    }
}
