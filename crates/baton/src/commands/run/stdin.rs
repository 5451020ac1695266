//! The prompt, or the rest of it, from standard input.

use std::io::{self, IsTerminal, Read};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Context;

use crate::failure::{hinted, note};

/// No context holds as much as this; what is longer is a mistake.
const MOST: u64 = 64 << 20;
/// After this time the user is told what we wait for.
const PATIENCE: Duration = Duration::from_secs(3);

/// All of standard input, without blank lines at its ends; none if it is a terminal or blank.
/// `have_prompt` says that there is something to ask already.
///
/// # Errors
/// If it cannot be read, is too long, or is no text.
pub fn piped(have_prompt: bool) -> anyhow::Result<Option<String>> {
    if io::stdin().is_terminal() {
        return Ok(None);
    }
    let (sender, receiver) = mpsc::channel();
    // Another thread, as there is no way to read with a time limit.
    thread::spawn(move || sender.send(read_all(io::stdin().lock())));
    let bytes = match receiver.recv_timeout(PATIENCE) {
        Ok(bytes) => bytes,
        Err(_) => {
            if have_prompt {
                note(
                    "waiting for the end of standard input, which is part of the prompt; \
                      `< /dev/null` keeps it out",
                );
            } else {
                note("waiting for the prompt on standard input");
            }
            receiver.recv().unwrap_or_else(|_| Ok(Vec::new()))
        }
    };
    let bytes = bytes.context("cannot read standard input")?;
    if bytes.len() as u64 > MOST {
        let hint = "give the model a part of it";
        return Err(hinted("standard input is longer than 64 MiB", hint));
    }
    let text = String::from_utf8(bytes).map_err(|_| {
        hinted("standard input is no UTF-8 text", "convert it first, as with iconv")
    })?;
    let text = text.trim_matches(['\n', '\r']);
    Ok(if text.trim().is_empty() { None } else { Some(text.to_owned()) })
}

fn read_all(input: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(MOST + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
