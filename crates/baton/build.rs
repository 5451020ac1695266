//! Tells the program which commit it is built from, where git knows.

use std::process::Command;

fn main() {
    let commit = git(&["rev-parse", "--short", "HEAD"]);
    let number = git(&["rev-list", "--count", "HEAD"]);
    println!("cargo:rustc-env=BATON_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    println!("cargo:rustc-env=BATON_COMMIT_NUMBER={}", number.as_deref().unwrap_or("0"));
    println!("cargo:rerun-if-changed=build.rs");
    // It changes with every commit and every switch of branches.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
