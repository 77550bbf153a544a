//! What is built beside a test.

use std::path::PathBuf;

/// The program `queue`.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    let folder = test.ancestors().find(|folder| folder.ends_with("deps")).expect("the folder of the build");
    let program = folder.with_file_name("queue");
    assert!(program.exists(), "{} is not built; start the tests with pgrx-tests/run", program.display());
    program
}
