//! Two thousand lines of what tokenizers stumble over, the same in every run.

use std::collections::BTreeSet;

/// What lines are put together from.
const SEEDS: &[&str] = &[
    // Prose and contractions.
    "Hello, world!",
    "I'm sure they'LL say it's we've DON'T 'tis O'Neill's",
    "The quick brown fox",
    "naïve café résumé Zürich Straße",
    "ELLIPSIS… “quoted” — dash–dash",
    "camelCaseWords HTTPServer2Go",
    "don’t can’t",
    "a",
    "I",
    "x y z",
    "antidisestablishmentarianism",
    "etc.",
    "e.g.,",
    "3rd 21st",
    // Scripts of the world.
    "日本語のテキストです。",
    "カタカナ ｶﾀｶﾅ",
    "中文分词测试，没有空格",
    "繁體中文",
    "한국어 문장입니다.",
    "Привет, как дела?",
    "Ελληνικά κείμενο",
    "مرحبا بالعالم",
    "שלום עולם",
    "हिन्दी में लिखा हुआ",
    "ไทยไม่มีวรรค",
    "Tiếng Việt có dấu",
    "ქართული",
    "Հայերեն",
    "አማርኛ",
    "தமிழ்",
    "ᠮᠣᠩᠭᠣᠯ",
    "İstanbul ıI ſ",
    // Emoji, joined, with skin tones, flags, keycaps.
    "😀",
    "👩‍👩‍👧‍👦",
    "👋🏽",
    "🇨🇭🇯🇵",
    "1️⃣#️⃣",
    "❤️‍🔥",
    "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "☃︎☃️",
    "🤷🏿‍♀️ ok",
    // Numbers.
    "0",
    "7",
    "42",
    "123",
    "1234567890",
    "3.14159",
    "1,000,000.00",
    "0xDEADBEEF",
    "1e-9",
    "٣٤٥",
    "½ ⅓ Ⅷ",
    "２０２４年",
    "²³",
    // Code.
    "fn main() { println!(\"{}\", 1 << 3); }",
    "def f(x):\n    return x**2",
    "\tif (a && !b) {",
    "#include <stdio.h>",
    "<div class=\"a\">&amp;</div>",
    "SELECT * FROM t WHERE a != 'b';",
    "https://example.org/a?b=c&d=%20#e",
    "a_b-c.d/e\\f",
    "====----====",
    "////",
    "{{[[((",
    "))]]}}",
    "$x += $y ~ `z`;",
    "λx.x → ∀y",
    "::<>()",
    "...",
    "!!!??",
    "^|~`",
    "'s",
    "''",
    "\"\"",
    // Combining marks, composed and not, and text from right to left.
    "e\u{301}",
    "é",
    "a\u{308}\u{323}",
    "\u{1100}\u{1161}\u{11a8}",
    "각",
    "ﬁ ﬂ",
    "Å Å Å",
    "Z\u{335}\u{30a}a\u{316}l\u{34f}g\u{32b}o",
    "\u{202b}abc\u{202c}",
    "\u{200f}עברית\u{200e}",
    "\u{64b}",
    "\u{e33}",
    "ก\u{e33}",
    // Odd spaces and control characters.
    " ",
    "  ",
    "   ",
    "        ",
    "\t",
    "\t\t",
    "\u{a0}",
    "\u{3000}",
    "\u{2003}\u{2009}",
    "\u{200b}",
    "\u{200d}",
    "\u{feff}",
    "\u{2028}",
    "\u{85}",
    "\u{0}",
    "\u{1}",
    "\u{7f}",
    "\u{1b}[31m",
    "\u{b}",
    "\u{c}",
    "\u{ad}",
    "\u{fffd}",
    "\u{fffe}",
    "\u{e000}",
    "\u{10ffff}",
    "\n",
    "\n\n",
    "\n\n\n",
    "\r\n",
    "\r",
    " \n ",
    "\r\n\r\n",
    "▁",
    "▁▁a",
    "Ġ",
    "Ċ",
    "##ing",
    // What looks like special tokens, and is some model's.
    "<s>",
    "</s>",
    "<unk>",
    "<pad>",
    "<bos>",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|begin_of_text|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
    "<0x0A>",
    "<0xFF>",
    "<|",
    "|>",
    "<|start|>",
    "<|im_",
    "im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "<｜User｜>",
    "<unused7>",
    "<h1>",
    "[CLS]",
    "<|IM_START|>",
    "< s >",
];

/// What goes between the parts of a line.
const JOINTS: &[&str] = &["", " ", " ", " ", "  ", "\n", "\t", ", "];

/// A small generator of numbers that are the same in every run (xorshift).
pub struct Numbers(pub u64);

impl Numbers {
    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// The lines. They are called so though some hold line breaks.
pub fn lines() -> Vec<String> {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let mut lines: Vec<String> = SEEDS.iter().map(|&seed| seed.to_owned()).collect();
    lines.push(String::new());
    let mut seen: BTreeSet<String> = lines.iter().cloned().collect();
    while lines.len() < 2_000 {
        let mut line = String::new();
        for part in 0..=numbers.below(8) {
            if part > 0 {
                line.push_str(JOINTS[numbers.below(JOINTS.len())]);
            }
            match numbers.below(10) {
                // Any character at all, from the denser parts of Unicode more often.
                0 => {
                    let end =
                        [0x80, 0x250, 0x3000, 0x1_0000, 0x2_0000, 0x11_0000][numbers.below(6)];
                    line.extend(char::from_u32(numbers.below(end) as u32));
                }
                1 => line.push_str(&numbers.below(1_000_000_007).to_string()),
                2 => line.push_str(&SEEDS[numbers.below(SEEDS.len())].to_uppercase()),
                _ => line.push_str(SEEDS[numbers.below(SEEDS.len())]),
            }
        }
        if seen.insert(line.clone()) {
            lines.push(line);
        }
    }
    lines
}

#[test]
fn the_corpus_is_two_thousand_lines_that_differ() {
    let lines = lines();
    let different: BTreeSet<&String> = lines.iter().collect();
    assert_eq!((lines.len(), different.len()), (2_000, 2_000));
}
