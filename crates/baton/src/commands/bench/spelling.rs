//! Flags with one dash and two letters, which `llama-bench` has and our parser does not know.

use std::ffi::OsString;

/// Spells `-pg` and `-ub` of `baton bench` the long way; leaves everything else as it is.
pub fn respelled(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<_> = arguments.into_iter().collect();
    if arguments.get(1).is_some_and(|command| command == "bench") {
        for argument in arguments.iter_mut().skip(2) {
            match argument.to_str() {
                Some("-pg") => *argument = "--pg".into(),
                Some("-ub") => *argument = "--ubatch-size".into(),
                _ => {}
            }
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn respelled_text(line: &str) -> String {
        let arguments = respelled(line.split(' ').map(OsString::from));
        arguments.join(" ".as_ref()).into_string().unwrap()
    }

    #[test]
    fn only_flags_of_bench_are_touched() {
        assert_eq!(
            respelled_text("baton bench m -pg 448,64 -ub 512 -p 1"),
            "baton bench m --pg 448,64 --ubatch-size 512 -p 1"
        );
        assert_eq!(respelled_text("baton run -pg -ub"), "baton run -pg -ub");
        assert_eq!(respelled_text("baton"), "baton");
    }
}
