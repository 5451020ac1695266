//! Numbers and texts as people read them.
//!
//! Texts may be those of strangers' files. What goes to a terminal goes through [`stdout`], or through
//! [`failure`](crate::failure) for standard error, which let none of it command the terminal.

use std::borrow::Cow;
use std::io::{self, Write};
use std::time::Duration;

/// Bytes in decimal units, as disks and model pages count: `98.4 MB`.
pub fn bytes(n: u64) -> String {
    scaled(n, 1000.0, &["B", "kB", "MB", "GB", "TB", "PB"])
}

/// Bytes in binary units, as memory is counted: `15.6 GiB`.
pub fn memory(n: u64) -> String {
    scaled(n, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// Reads a number of bytes: `8GiB`, `8G` and `8GB` are the same, in binary units.
///
/// # Errors
/// A message, if it is none.
pub fn parse_memory(text: &str) -> Result<u64, String> {
    let wanted = "expected a size such as 512MiB or 8GiB";
    let text = text.trim().to_ascii_lowercase();
    let digits = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let shift = match text[digits..].trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wanted.into()),
    };
    let number: f64 = text[..digits].trim().parse().map_err(|_| wanted)?;
    let bytes = number * (1u64 << shift) as f64;
    // Above this not every whole number is one of these.
    if (1.0..=(1u64 << 53) as f64).contains(&bytes) { Ok(bytes as u64) } else { Err(wanted.into()) }
}

/// A count with a decimal suffix: `134.5M`.
pub fn count(n: u64) -> String {
    scaled(n, 1000.0, &["", "K", "M", "B", "T"]).replace(' ', "")
}

/// A text without the characters that a terminal would obey instead of showing, but for ends of lines.
pub fn harmless(text: &str) -> Cow<'_, str> {
    without(text, |c| is_harmful(c) && !matches!(c, '\n' | '\t'))
}

/// The same in one line: a name in a table or in a sentence.
pub fn in_line(text: &str) -> Cow<'_, str> {
    without(text, is_harmful)
}

fn without(text: &str, harmful: impl Fn(char) -> bool) -> Cow<'_, str> {
    match text.contains(&harmful) {
        true => text.replace(harmful, "\u{FFFD}").into(),
        false => text.into(),
    }
}

/// Whether it commands a terminal, or turns the direction of what stands around it.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61C}' | '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}'
        )
}

/// Standard output for text that people read.
pub fn stdout() -> Harmless<io::StdoutLock<'static>> {
    Harmless(io::stdout().lock())
}

/// Passes [harmless] text on. Each write is a whole text, as `write!` makes them.
#[derive(Debug)]
pub struct Harmless<W>(W);

impl<W: Write> Write for Harmless<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(harmless(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn scaled(n: u64, step: f64, units: &[&str]) -> String {
    let mut value = n as f64;
    let mut unit = 0;
    // 999.95 would be printed as 1000.0.
    while value >= step - 0.05 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    if unit == 0 { format!("{n} {}", units[0]) } else { format!("{value:.1} {}", units[unit]) }
}

/// How long ago something was: `3 days ago`.
pub fn ago(age: Duration) -> String {
    let seconds = age.as_secs();
    let (n, unit) = match seconds {
        0..60 => return "just now".into(),
        60..3_600 => (seconds / 60, "minute"),
        3_600..86_400 => (seconds / 3_600, "hour"),
        86_400..1_209_600 => (seconds / 86_400, "day"),
        1_209_600..5_184_000 => (seconds / 604_800, "week"),
        5_184_000..63_072_000 => (seconds / 2_592_000, "month"),
        _ => (seconds / 31_536_000, "year"),
    };
    format!("{n} {unit}{} ago", if n == 1 { "" } else { "s" })
}

/// A time span with three digits or so: `812 ms`, `3.21 s`.
pub fn time(span: Duration) -> String {
    let seconds = span.as_secs_f64();
    if seconds < 0.001 {
        format!("{:.0} µs", seconds * 1e6)
    } else if seconds < 0.1 {
        format!("{:.1} ms", seconds * 1e3)
    } else if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1e3)
    } else if seconds < 120.0 {
        format!("{seconds:.2} s")
    } else {
        format!("{:.0} min {:.0} s", (seconds / 60.0).floor(), seconds % 60.0)
    }
}

/// Lines of a table whose columns are as wide as their widest cell, two spaces apart.
pub fn table<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let rows: Vec<_> = rows.iter().map(|row| row.each_ref().map(|cell| in_line(cell))).collect();
    let width = |column: usize| {
        rows.iter().map(|row| console::measure_text_width(&row[column])).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    rows.iter()
        .map(|row| {
            let cells = row.iter().zip(&widths);
            let padded = cells.map(|(cell, &width)| {
                console::pad_str(cell, width, console::Alignment::Left, None).into_owned()
            });
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in
            [("8GiB", 8 << 30), ("8g", 8 << 30), ("512 MB", 512 << 20), ("1.5k", 1536), ("7", 7)]
        {
            assert_eq!(parse_memory(text), Ok(bytes), "{text}");
        }
        for bad in ["", "0", "-1G", "much", "8 potatoes", "1e40", "NaN", "inf"] {
            assert!(parse_memory(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(98_362_432), "98.4 MB");
        assert_eq!(bytes(999_999_999), "1.0 GB");
        assert_eq!(bytes(u64::MAX), "18446.7 PB");
        assert_eq!(memory(1 << 34), "16.0 GiB");
        assert_eq!(count(134_515_008), "134.5M");
        assert_eq!(count(7), "7");
    }

    #[test]
    fn ages() {
        let ago = |seconds| ago(Duration::from_secs(seconds));
        assert_eq!(ago(5), "just now");
        assert_eq!(ago(60), "1 minute ago");
        assert_eq!(ago(7_200), "2 hours ago");
        assert_eq!(ago(1_209_600), "2 weeks ago");
        assert_eq!(ago(5_184_000), "2 months ago");
        assert_eq!(ago(63_072_000), "2 years ago");
    }

    #[test]
    fn times() {
        assert_eq!(time(Duration::from_micros(12)), "12 µs");
        assert_eq!(time(Duration::from_micros(12_340)), "12.3 ms");
        assert_eq!(time(Duration::from_millis(812)), "812 ms");
        assert_eq!(time(Duration::from_millis(3_210)), "3.21 s");
        assert_eq!(time(Duration::from_secs(125)), "2 min 5 s");
    }

    #[test]
    fn what_would_command_a_terminal_is_shown_as_something_that_cannot_be() {
        let hostile = "a\u{1b}[2Jb\u{9b}1mc\r\u{7}\u{202e}d\n\te";
        let shown = "a\u{FFFD}[2Jb\u{FFFD}1mc\u{FFFD}\u{FFFD}\u{FFFD}d";
        assert_eq!(harmless(hostile), format!("{shown}\n\te"));
        assert_eq!(in_line(hostile), format!("{shown}\u{FFFD}\u{FFFD}e"));
        assert_eq!(in_line("Größe 模型"), "Größe 模型");
        let mut out = Harmless(Vec::new());
        writeln!(out, "{hostile}").unwrap();
        assert_eq!(String::from_utf8(out.0).unwrap(), format!("{shown}\n\te\n"));
        assert_eq!(table(&[[hostile.to_owned()]]), [in_line(hostile)]);
    }

    #[test]
    fn columns_line_up() {
        let cell = str::to_owned;
        let rows = [[cell("NAME"), cell("SIZE")], [cell("gemma3:270m"), cell("253.1 MB")]];
        assert_eq!(table(&rows), ["NAME         SIZE", "gemma3:270m  253.1 MB"]);
    }
}
