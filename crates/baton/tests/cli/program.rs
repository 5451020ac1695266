//! Running the built program in a home of its own, without network.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::tiny;

/// What a run left.
#[derive(Debug)]
pub struct Output {
    /// Exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// A folder that stands for everything the program may touch.
pub struct Home {
    folder: TempDir,
}

impl Home {
    /// An empty one.
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A model file that answers [`tiny::ANSWER`].
    pub fn model(&self) -> String {
        self.made("tiny.gguf", tiny::write_answering)
    }

    /// A model file that never ends an answer.
    pub fn endless_model(&self) -> String {
        self.made("endless.gguf", tiny::write_endless)
    }

    fn made(&self, name: &str, write: fn(&Path)) -> String {
        let path = self.path(name);
        if !path.exists() {
            write(&path);
        }
        path.to_str().unwrap().to_owned()
    }

    /// Makes `name` the only model of the catalog, to be had from `source`.
    pub fn catalog(&self, name: &str, source: &str) {
        let text = format!(
            "default = {name:?}\n[models.{name}]\ntitle = \"Tiny\"\nlicense = \"MIT\"\n\
             sources = [{source:?}]\n"
        );
        std::fs::create_dir_all(self.path("config")).unwrap();
        std::fs::write(self.path("config/catalog.toml"), text).unwrap();
    }

    /// The program with these arguments.
    pub fn command<S: AsRef<str>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
        command.env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.folder.path());
        command.env("BATON_HOME", self.path("store"));
        command.env("BATON_CONFIG", self.path("config"));
        command.args(args.iter().map(AsRef::as_ref)).current_dir(self.folder.path());
        command
    }

    /// Runs it with nothing on standard input.
    pub fn run<S: AsRef<str>>(&self, args: &[S]) -> Output {
        finish(self.command(args).stdin(Stdio::null()), b"")
    }

    /// Runs it with this on standard input.
    pub fn run_with_stdin<S: AsRef<str>>(&self, args: &[S], input: &[u8]) -> Output {
        finish(self.command(args).stdin(Stdio::piped()), input)
    }
}

/// Runs a command to its end.
pub fn finish(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    if let Some(mut stdin) = child.stdin.take() {
        // It may end without reading everything.
        let _ = stdin.write_all(input);
    }
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).expect("all output is UTF-8");
    Output { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

impl Output {
    /// Checks that it went well, and gives standard output.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// Checks that it failed with this exit code and one line of error that holds `part`, and that
    /// nothing was printed to standard output.
    #[track_caller]
    pub fn failed(self, code: i32, part: &str) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        let errors = self.stderr.lines().filter(|line| line.starts_with("error:")).count();
        assert_eq!(errors, 1, "{self:?}");
        assert!(self.stderr.contains(part), "{self:?}");
        assert!(
            !self.stderr.contains("panicked") && !self.stderr.contains("has a bug"),
            "{self:?}"
        );
        self
    }
}
