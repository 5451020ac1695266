mod answers;
mod content;
mod models;

use serde_json::Value;

use crate::testing::{hello, with};

fn said(lines: &[Value]) -> String {
    lines.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect()
}
