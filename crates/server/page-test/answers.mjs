/** What the mock server says: rows {when, parts, refuse, broken, finish}; the last one answers anything. */

/** Splits a text into pieces as short as tokens. */
function* words(text, field = 'content') {
  for (const piece of text.match(/[^]{1,4}/gu) ?? []) yield { [field]: piece };
}

const RICH = `# How a model writes

A **language model** writes one *token* at a time; ~~letters~~ \`tokens\` are its alphabet. See
[the Rust book](https://doc.rust-lang.org/book/) or https://example.org/a_b_c.

1. It reads the prompt (*prefill*):
   - all tokens at once,
   - bound by arithmetic.
2. It writes the answer (*decode*):
   \`\`\`rust
   while let Some(token) = sampler.next(&logits) {
       print!("{token}");
   }
   \`\`\`
3. It stops.

| Phase | Bound by | Rate |
|:------|:--------:|-----:|
| prefill | arithmetic | 235.8 |
| decode | memory \\| bandwidth | 101.7 |

> A quote
> of two lines.

- [x] measured
- [ ] guessed

\`\`\`python
def words(text: str) -> int:
    """Counts words."""
    return len(text.split())  # by white space, and this comment is long enough to need a scroll bar of its own here


if __name__ == "__main__":
    print(words("one two three"), 42)
\`\`\`

The formula \\(a_1 * b_2 * c\\) keeps its stars.
`;

const HOSTILE = `<script>window.hacked = 1</script>
<img src=x onerror="window.hacked = 2">
[a](javascript:window.hacked=3) [b](data:text/html,x) [c](JaVaScRiPt:alert(1)) <javascript:alert(1)>
![pixel](https://example.org/pixel.png) [ok](https://example.org/) [mail](mailto:a@example.org)
<iframe src="https://example.org"></iframe> [d]( java\tscript:alert(1))

| <b>x</b> | [e](vbscript:x) |
|---|---|
| <svg onload=alert(1)> | \`</code><script>\` |
`;

const CODE = `\`\`\`js\n${Array.from({ length: 120 }, (_, i) => `const value${i} = compute(${i}, "text ${i}"); // line ${i}`).join('\n')}\n\`\`\``;

export const ANSWERS = [
  { when: 'rich', parts: () => words(RICH) },
  { when: 'hostile', parts: () => words(HOSTILE) },
  { when: 'long code', parts: () => words(CODE) },
  {
    when: 'think',
    *parts() {
      yield* words('The user wants to know something. I should weigh **two** options, then answer.', 'reasoning_content');
      yield* words('The answer is 42.');
    },
  },
  {
    when: 'tool',
    *parts() {
      yield { tool_calls: [{ index: 0, id: 'call_1', type: 'function', function: { name: 'weather', arguments: '' } }] };
      for (const piece of ['{"city":', ' "Oslo"', '}']) yield { tool_calls: [{ index: 0, function: { arguments: piece } }] };
    },
    finish: 'tool_calls',
  },
  { when: 'endless', *parts() { for (let i = 0; ; i += 1) yield { content: `word${i} ` }; } },
  { when: 'refuse', refuse: [400, { error: { message: 'temperature must be at least 0', type: 'invalid_request_error' } }] },
  { when: 'crowded', refuse: [503, { error: 'too many requests are waiting' }, { 'Retry-After': '2' }] },
  { when: 'out of memory', parts: () => words('It begins well'), broken: 'error' },
  { when: 'cut', parts: () => words('It begins well'), broken: 'cut' },
  { when: 'too long', parts: () => words('This answer is cut'), finish: 'length' },
  { when: '', parts: (last) => words(`You said: ${last.slice(0, 200)}. That is noted, and here is a second sentence to read.`) },
];
