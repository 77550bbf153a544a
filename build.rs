//! Puts the native edition's SQL into one file, for src/schema.rs.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=sql/manifest");
    println!("cargo::rerun-if-changed=sql/edition");
    // An overlay that is added or deleted changes the list.
    println!("cargo::rerun-if-changed=sql/editions");
    let listed = Command::new("sh").args(["sql/edition", "native"]).output()?;
    if !listed.status.success() {
        return Err(String::from_utf8_lossy(&listed.stderr).into());
    }
    let mut script = String::new();
    for file in str::from_utf8(&listed.stdout)?.lines() {
        println!("cargo::rerun-if-changed={file}");
        script.push_str(&fs::read_to_string(file)?);
    }
    let out = env::var("OUT_DIR")?;
    let path = Path::new(&out).join("native.sql");
    fs::write(&path, script)?;
    // The macro takes a literal path and nothing else.
    let entry = format!("pgrx::extension_sql_file!({path:?}, name = \"queue_ext\", bootstrap);\n");
    fs::write(Path::new(&out).join("schema.rs"), entry)?;
    Ok(())
}
