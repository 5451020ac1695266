//! Results drawn against the roofline, as an SVG image.
//!
//! To the right are operations for each byte that is read, upwards operations per second, both
//! logarithmic. The slope is what memory allows, the flat line what the vector units do.

use std::fmt::Write;

use super::record::Record;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// A result, or the half of one that is a prompt or an answer.
struct Point {
    name: String,
    threads: usize,
    x: f64,
    y: f64,
    share: Option<f64>,
}

/// The limits for one number of threads.
struct Line {
    threads: usize,
    read: f64,
    ops: Option<f64>,
}

/// Part of a logarithmic axis.
struct Axis {
    low: f64,
    high: f64,
    start: f64,
    end: f64,
}

impl Axis {
    /// An axis over these values, from a power of ten to a power of ten.
    fn over(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Axis {
        let (low, high) = values
            .filter(|value| value.is_finite() && *value > 0.0)
            .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if low > high { (1.0, 10.0) } else { (low, high) };
        let (low, high) = (low.log10().floor(), high.log10().ceil());
        Axis { low, high: if high > low { high } else { low + 1.0 }, start, end }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value.log10() - self.low) / (self.high - self.low);
        self.start + share * (self.end - self.start)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        (self.low as i32..=self.high as i32).map(|power| 10f64.powi(power))
    }
}

/// The image.
pub fn svg(records: &[Record]) -> String {
    let points = points(records);
    let lines = lines(records);
    let x = Axis::over(points.iter().map(|p| p.x).chain([1.0, 100.0]), LEFT, WIDTH - RIGHT);
    let tops = lines.iter().flat_map(|l| l.ops.into_iter().chain([l.read * 10f64.powf(x.low)]));
    let y = Axis::over(points.iter().map(|p| p.y).chain(tops), HEIGHT - BOTTOM, TOP);
    let mut image = Image::default();
    image.frame(&x, &y, &title(records));
    for (i, line) in lines.iter().enumerate() {
        image.roof(line, &x, &y, COLOURS[i % COLOURS.len()]);
    }
    for point in &points {
        let colour = lines.iter().position(|line| line.threads == point.threads).unwrap_or(0);
        image.point(point, &x, &y, COLOURS[colour % COLOURS.len()]);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
        image.0
    )
}

fn title(records: &[Record]) -> String {
    let mut models: Vec<&str> = records.iter().map(|r| r.model_type.as_str()).collect();
    models.dedup();
    let cpu = records.first().map_or("", |record| record.cpu_info.as_str());
    format!("{} on {cpu}", models.join(", "))
}

fn points(records: &[Record]) -> Vec<Point> {
    let mut points = Vec::new();
    for record in records {
        let test = record.test();
        let halves = [
            (record.prompt_ops_per_byte, record.prompt_ops_per_s, record.prompt_roof_share),
            (record.gen_ops_per_byte, record.gen_ops_per_s, record.gen_roof_share),
        ];
        let both = test.prompt > 0 && test.generated > 0;
        for (half, (x, y, share)) in halves.into_iter().enumerate() {
            let Some((x, y)) = x.zip(y) else { continue };
            let suffix = if !both { "" } else { [": prompt", ": answer"][half] };
            let name = format!("{test}{suffix}");
            points.push(Point { name, threads: record.n_threads, x, y, share });
        }
    }
    points
}

/// The limits of each number of threads, the first measurement of each.
fn lines(records: &[Record]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for record in records {
        let threads = record.n_threads;
        let Some(read) = record.roof_read_bytes_per_s else { continue };
        if lines.iter().all(|line| line.threads != threads) {
            lines.push(Line { threads, read, ops: record.roof_ops_per_s });
        }
    }
    lines
}

/// The elements of an image.
#[derive(Default)]
struct Image(String);

impl Image {
    fn frame(&mut self, x: &Axis, y: &Axis, title: &str) {
        self.text(WIDTH / 2.0, 28.0, "middle", "font-size=\"15\"", title);
        for tick in x.ticks() {
            let at = x.at(tick);
            self.line((at, y.start), (at, y.end), "stroke=\"#ddd\"");
            self.text(at, y.start + 18.0, "middle", "", &format!("{tick}"));
        }
        for tick in y.ticks() {
            let at = y.at(tick);
            self.line((x.start, at), (x.end, at), "stroke=\"#ddd\"");
            self.text(x.start - 8.0, at + 4.0, "end", "", &operations(tick));
        }
        let middle = f64::midpoint(x.start, x.end);
        self.text(middle, HEIGHT - 16.0, "middle", "", "operations for each byte read");
        self.text(LEFT, TOP - 10.0, "end", "", "op/s");
    }

    fn roof(&mut self, line: &Line, x: &Axis, y: &Axis, colour: &str) {
        let (left, right) = (10f64.powf(x.low), 10f64.powf(x.high));
        let height = |at: f64| line.ops.map_or(line.read * at, |ops| ops.min(line.read * at));
        let knee = line.ops.map_or(right, |ops| (ops / line.read).clamp(left, right));
        let style = format!("stroke=\"{colour}\" stroke-width=\"2\" fill=\"none\"");
        let corner = |at: f64| (x.at(at), y.at(height(at)).max(TOP));
        self.line(corner(left), corner(knee), &style);
        self.line(corner(knee), corner(right), &style);
        let ops = line.ops.map_or_else(String::new, |ops| format!(", {}op/s", operations(ops)));
        let plural = if line.threads == 1 { "" } else { "s" };
        let name = format!("{} thread{plural}: {:.1} GB/s{ops}", line.threads, line.read / 1e9);
        let (at, top) = corner(right);
        self.text(at, top - 6.0, "end", &format!("fill=\"{colour}\""), &name);
    }

    fn point(&mut self, point: &Point, x: &Axis, y: &Axis, colour: &str) {
        let (cx, cy) = (x.at(point.x), y.at(point.y));
        // Writing to a string cannot fail.
        let _ =
            writeln!(self.0, "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"5\" fill=\"{colour}\"/>");
        let share = point.share.map_or_else(String::new, |s| format!(" ({:.0} %)", 100.0 * s));
        let (at, anchor) = if cx > WIDTH - 200.0 { (cx - 9.0, "end") } else { (cx + 9.0, "start") };
        self.text(at, cy + 4.0, anchor, "", &format!("{}{share}", point.name));
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), style: &str) {
        let _ = writeln!(
            self.0,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {style}/>",
            from.0, from.1, to.0, to.1
        );
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, style: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let _ = writeln!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {style}>{text}</text>"
        );
    }
}

/// A number of operations with a prefix: `100 G`.
fn operations(n: f64) -> String {
    let (size, prefix) = match n {
        n if n >= 1e12 => (1e12, "T"),
        n if n >= 1e9 => (1e9, "G"),
        n if n >= 1e6 => (1e6, "M"),
        _ => (1.0, ""),
    };
    let value = n / size;
    if value >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0} {prefix}")
    } else {
        format!("{value:.1} {prefix}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::tests::made_up;

    fn record() -> Record {
        Record {
            model_type: "a <b> & c".into(),
            roof_read_bytes_per_s: Some(2e10),
            roof_ops_per_s: Some(1e11),
            prompt_ops_per_byte: Some(1e3),
            prompt_ops_per_s: Some(5e10),
            prompt_roof_share: Some(0.5),
            gen_ops_per_byte: Some(2.0),
            gen_ops_per_s: Some(2e10),
            gen_roof_share: Some(0.5),
            ..made_up()
        }
    }

    #[test]
    fn every_result_and_limit_is_in_the_image() {
        let image = svg(&[record()]);
        assert_eq!(image.matches("<circle").count(), 2);
        for text in [
            "pp448+tg64 @ d1024: prompt (50 %)",
            "pp448+tg64 @ d1024: answer (50 %)",
            "2 threads: 20.0 GB/s, 100 Gop/s",
            "a &lt;b&gt; &amp; c on Some",
        ] {
            assert!(image.contains(text), "{text}\n{image}");
        }
        assert!(!image.contains("NaN") && !image.contains("inf"), "{image}");
    }

    #[test]
    fn a_point_on_the_roof_lies_on_its_line() {
        let x = Axis::over([1.0, 1e3].into_iter(), 0.0, 300.0);
        assert_eq!((x.at(1.0), x.at(10.0), x.at(1e3)), (0.0, 100.0, 300.0));
        assert_eq!(x.ticks().collect::<Vec<_>>(), [1.0, 10.0, 100.0, 1000.0]);
    }

    #[test]
    fn without_limits_there_is_still_an_image() {
        let mut record = record();
        (record.roof_read_bytes_per_s, record.roof_ops_per_s) = (None, None);
        record.prompt_roof_share = None;
        assert!(svg(&[record]).contains("<circle"));
        assert!(svg(&[]).ends_with("</svg>\n"));
    }
}
