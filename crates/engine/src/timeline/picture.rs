//! A timeline as a picture: a row for each unit, a colour for each sequence.

use std::io::{self, Write};
use std::time::Duration;

use super::{Slice, Timeline, Work, lanes};

const WIDTH: f64 = 1100.0;
/// Where time begins, to the right of the names.
const LEFT: f64 = 170.0;
const ROW: f64 = 56.0;
const TOP: f64 = 40.0;
/// Colours that differ also for those who see fewer of them.
const COLOURS: [&str; 6] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"];

impl Timeline {
    /// Draws the slices as an SVG image: prompts as full bars, tokens of answers as lower ones, and
    /// hand-offs as thin ones below. Colours stand for sequences.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_picture(&self, to: &mut impl Write) -> io::Result<()> {
        let slices = self.slices();
        let names = lanes(&slices);
        let start = slices.iter().map(|slice| slice.start).min().unwrap_or_default();
        let end = slices.iter().map(|slice| slice.end).max().unwrap_or_default();
        let total = end.saturating_sub(start).as_secs_f64().max(1e-6);
        let x = |time: Duration| {
            LEFT + (WIDTH - LEFT - 20.0) * time.saturating_sub(start).as_secs_f64() / total
        };
        let height = TOP + ROW * names.len() as f64 + 40.0;
        writeln!(
            to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"13\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>"
        )?;
        for (row, name) in names.iter().enumerate() {
            let y = TOP + ROW * row as f64;
            writeln!(to, "<text x=\"10\" y=\"{}\">{name}</text>", y + 22.0)?;
            for slice in slices.iter().filter(|slice| slice.lane == *name) {
                bar(to, slice, (x(slice.start), x(slice.end)), y)?;
            }
        }
        axis(to, total, TOP + ROW * names.len() as f64)?;
        let mut sequences: Vec<u32> = slices.iter().flat_map(|s| s.sequences.clone()).collect();
        sequences.sort_unstable();
        sequences.dedup();
        for (at, sequence) in sequences.iter().take(COLOURS.len()).enumerate() {
            let (x, colour) = (LEFT + 140.0 * at as f64, colour(*sequence));
            writeln!(
                to,
                "<rect x=\"{x}\" y=\"12\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
                 <text x=\"{}\" y=\"23\">sequence {sequence}</text>",
                x + 18.0
            )?;
        }
        writeln!(to, "</svg>")?;
        to.flush()
    }
}

fn bar(to: &mut impl Write, slice: &Slice, (from, until): (f64, f64), y: f64) -> io::Result<()> {
    let (offset, height) = match slice.work {
        Work::Prefill | Work::Mixed => (2.0, 34.0),
        Work::Decode => (14.0, 22.0),
        Work::Export | Work::Import => (38.0, 10.0),
    };
    // Of what is shorter than a pixel something is to be seen.
    let width = (until - from).max(0.6);
    let colour = slice.sequences.first().map_or("#888888", |sequence| colour(*sequence));
    writeln!(
        to,
        "<rect x=\"{from:.2}\" y=\"{}\" width=\"{width:.2}\" height=\"{height}\" fill=\"{colour}\" \
         stroke=\"white\" stroke-width=\"0.3\"><title>{}: {} tokens, {:.1} ms</title></rect>",
        y + offset,
        slice.work.name(),
        slice.tokens,
        1e3 * slice.end.saturating_sub(slice.start).as_secs_f64()
    )
}

fn axis(to: &mut impl Write, total: f64, y: f64) -> io::Result<()> {
    let rough = total / 8.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|&step| step >= rough);
    let step = step.unwrap_or(rough);
    let mut at = 0.0;
    while at <= total {
        let x = LEFT + (WIDTH - LEFT - 20.0) * at / total;
        writeln!(
            to,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{y}\" stroke=\"#dddddd\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{:.0} ms</text>",
            y + 20.0,
            1e3 * at
        )?;
        at += step;
    }
    Ok(())
}

fn colour(sequence: u32) -> &'static str {
    COLOURS[sequence as usize % COLOURS.len()]
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn every_slice_is_drawn_in_its_row() {
        let timeline = Timeline::start();
        let start = Instant::now();
        timeline.add("far: prefill", Work::Prefill, start, 512, vec![0]);
        timeline.add("cpu: decode", Work::Import, start, 512, vec![0]);
        timeline.add("cpu: decode", Work::Decode, start, 1, vec![1]);
        let mut svg = Vec::new();
        timeline.write_picture(&mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert_eq!(svg.matches("<title>").count(), 3);
        assert!(svg.contains("far: prefill</text>") && svg.contains("cpu: decode</text>"));
        assert!(svg.contains("sequence 1</text>") && svg.contains("hand-off in: 512 tokens"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn an_empty_timeline_is_an_empty_picture() {
        let mut svg = Vec::new();
        Timeline::start().write_picture(&mut svg).unwrap();
        assert!(String::from_utf8(svg).unwrap().contains("0 ms"));
    }
}
