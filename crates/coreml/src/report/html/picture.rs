//! Operations as boxes, below what they wait for.

use std::ops::Range;

use super::{add, colour, escaped};
use crate::report::Placed;

/// Of a box, and from one to the next.
const WIDTH: usize = 150;
const HEIGHT: usize = 34;
const ACROSS: usize = 165;
const DOWN: usize = 52;
const MARGIN: usize = 12;
/// Characters that a box takes.
const LETTERS: usize = 22;

/// Draws some of a function's operations.
pub(super) fn draw(out: &mut String, ops: &[Placed], range: Range<usize>) {
    let shown = &ops[range.clone()];
    let inside = |&i: &usize| range.contains(&i);
    // Each stands one row below the last that it waits for, and what waits for nothing just above the
    // first that waits for it.
    let before = |op: &Placed| -> Vec<usize> {
        op.after.iter().filter(|i| inside(i)).map(|i| i - range.start).collect()
    };
    let mut rows: Vec<usize> = Vec::new();
    for op in shown {
        rows.push(before(op).into_iter().map(|i| rows[i] + 1).max().unwrap_or(0));
    }
    let mut first = vec![usize::MAX; shown.len()];
    for (i, op) in shown.iter().enumerate() {
        before(op).into_iter().for_each(|j| first[j] = first[j].min(rows[i]));
    }
    for (i, op) in shown.iter().enumerate() {
        if before(op).is_empty() && first[i] < usize::MAX {
            rows[i] = first[i] - 1;
        }
    }
    let mut columns: Vec<usize> = Vec::new();
    let mut taken: Vec<usize> = vec![0; rows.iter().max().map_or(0, |last| last + 1)];
    for &row in &rows {
        columns.push(taken[row]);
        taken[row] += 1;
    }
    let across = taken.iter().copied().max().unwrap_or(0);
    let (width, height) = (2 * MARGIN + across * ACROSS, 2 * MARGIN + taken.len() * DOWN);
    add(
        out,
        format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\">\n"
        ),
    );
    let corner = |i: usize| (MARGIN + columns[i] * ACROSS, MARGIN + rows[i] * DOWN);
    for (i, op) in shown.iter().enumerate() {
        let (x, y) = corner(i);
        for from in before(op) {
            let (from_x, from_y) = corner(from);
            add(
                out,
                format_args!(
                    "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{y}\" stroke=\"#999\"/>\n",
                    from_x + WIDTH / 2,
                    from_y + HEIGHT,
                    x + WIDTH / 2
                ),
            );
        }
    }
    for (i, op) in shown.iter().enumerate() {
        let (x, y) = corner(i);
        let why = op.rule.map_or("no rule is against it", |rule| rule.reason);
        let shape: Vec<_> = op.shape.iter().map(usize::to_string).collect();
        let short = |text: &str| escaped(&text.chars().take(LETTERS).collect::<String>());
        add(
            out,
            format_args!(
                "<g><title>{}: {why}</title>\
                 <rect x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"5\" fill=\"{}\"/>\
                 <text x=\"{tx}\" y=\"{}\">{}</text><text x=\"{tx}\" y=\"{}\" fill=\"#444\">{}</text></g>\n",
                escaped(&op.name),
                colour(op.unit),
                y + 14,
                short(&op.kind),
                y + 28,
                short(&shape.join(" × ")),
                tx = x + 7,
            ),
        );
    }
    out.push_str("</svg>\n");
}
