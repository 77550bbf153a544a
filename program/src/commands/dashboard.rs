//! `queue dashboard`

use std::process::ExitCode;

use crate::failure::Failure;

pub fn run(_url: Option<&str>, _arguments: Vec<String>) -> Result<ExitCode, Failure> {
    Err(Failure::new("not yet"))
}
