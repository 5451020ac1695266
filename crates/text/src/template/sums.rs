//! What templates build, brought under the bounds of a render.
//!
//! `minijinja` charges fuel for joined strings, but not for lists joined with `+`: a few lines that
//! double a list exhaust any memory. And a list in a list in a list costs next to nothing, but
//! dropping or printing it takes stack for each level. So each sum `a + b` and each list `[a, b]` in
//! the source is put through a filter that charges for it, which also keeps the compiler from
//! working out sums of constants. What a template computes stays the same.

use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Stmt};
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

/// The name of the filter. Unlike those of functions, a template cannot give it to something else.
pub(super) const FILTER: &str = "__charged";
/// Lists that are joined one within another before the filter sees the result. `minijinja` itself
/// copies them at twice as many.
const MAX_JOINS: usize = 16;

/// What a list or a dictionary costs beside its items, in fuel.
const NESTING: u64 = 8;

/// The filter: joined lists become a plain one, its items paid for.
pub(super) fn charged(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Iterable => {}
        ValueKind::Seq | ValueKind::Map => {
            state.consume_fuel(NESTING)?;
            return Ok(value);
        }
        _ => return Ok(value),
    }
    let mut list = Vec::new();
    for item in value.try_iter()? {
        state.consume_fuel(1)?;
        list.push(item);
    }
    Ok(Value::from(list))
}

/// The source with each sum and list put through the filter; one that cannot be parsed stays as it is, for
/// the compiler to say what is wrong with it.
pub(super) fn with_charges(source: String, syntax: &SyntaxConfig) -> String {
    let mut sums = Sums::default();
    match parse(&source, "chat", syntax.clone()) {
        Ok(template) => sums.statement(&template),
        Err(_) => return source,
    }
    let Sums(mut marks) = sums;
    marks.sort_by_key(|mark| mark.0);
    let mut result = String::with_capacity(source.len() + marks.len() * 8);
    let mut rest = 0;
    for (at, mark) in marks {
        let Some(text) = source.get(rest..at) else { return source };
        result.push_str(text);
        match mark {
            Mark::Open => result.push('('),
            Mark::Close => result.extend([")|", FILTER]),
        }
        rest = at;
    }
    result.push_str(&source[rest..]);
    result
}

/// Where a sum or a list begins or ends.
#[derive(Clone, Copy)]
enum Mark {
    Open,
    Close,
}

/// Collects the places of sums and lists.
#[derive(Default)]
struct Sums(Vec<(usize, Mark)>);

impl Sums {
    fn statements(&mut self, list: &[Stmt<'_>]) {
        list.iter().for_each(|statement| self.statement(statement));
    }

    fn statement(&mut self, statement: &Stmt<'_>) {
        match statement {
            Stmt::Template(s) => self.statements(&s.children),
            Stmt::EmitExpr(s) => self.whole(&s.expr),
            Stmt::ForLoop(s) => {
                self.whole(&s.iter);
                s.filter_expr.iter().for_each(|expr| self.whole(expr));
                self.statements(&s.body);
                self.statements(&s.else_body);
            }
            Stmt::IfCond(s) => {
                self.whole(&s.expr);
                self.statements(&s.true_body);
                self.statements(&s.false_body);
            }
            Stmt::WithBlock(s) => {
                s.assignments.iter().for_each(|(_, expr)| self.whole(expr));
                self.statements(&s.body);
            }
            Stmt::Set(s) => self.whole(&s.expr),
            Stmt::SetBlock(s) => {
                s.filter.iter().for_each(|expr| self.whole(expr));
                self.statements(&s.body);
            }
            Stmt::AutoEscape(s) => {
                self.whole(&s.enabled);
                self.statements(&s.body);
            }
            Stmt::FilterBlock(s) => {
                self.whole(&s.filter);
                self.statements(&s.body);
            }
            Stmt::Macro(s) => {
                s.defaults.iter().for_each(|expr| self.whole(expr));
                self.statements(&s.body);
            }
            Stmt::CallBlock(s) => {
                self.whole(&s.call.expr);
                self.arguments(&s.call.args);
                s.macro_decl.defaults.iter().for_each(|expr| self.whole(expr));
                self.statements(&s.macro_decl.body);
            }
            Stmt::Do(s) => {
                self.whole(&s.call.expr);
                self.arguments(&s.call.args);
            }
            Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
        }
    }

    /// An expression whose value goes anywhere.
    fn whole(&mut self, expr: &Expr<'_>) {
        if self.joins(expr) > 0 {
            self.mark(expr);
        }
    }

    fn mark(&mut self, expr: &Expr<'_>) {
        let span = expr.span();
        self.0.push((span.start_offset as usize, Mark::Open));
        self.0.push((span.end_offset as usize, Mark::Close));
    }

    /// How many joins the value of `expr` has that are not paid for yet.
    fn joins(&mut self, expr: &Expr<'_>) -> usize {
        match expr {
            Expr::BinOp(e) if matches!(e.op, BinOpKind::Add) => {
                let joins = 1 + self.joins(&e.left).max(self.joins(&e.right));
                if joins < MAX_JOINS {
                    return joins;
                }
                self.mark(expr);
            }
            Expr::BinOp(e) => {
                self.whole(&e.left);
                self.whole(&e.right);
            }
            Expr::Slice(e) => {
                self.whole(&e.expr);
                [&e.start, &e.stop, &e.step].into_iter().flatten().for_each(|e| self.whole(e));
            }
            Expr::UnaryOp(e) => self.whole(&e.expr),
            Expr::Compare(e) => {
                self.whole(&e.expr);
                e.ops.iter().for_each(|op| self.whole(&op.expr));
            }
            Expr::IfExpr(e) => {
                self.whole(&e.test_expr);
                self.whole(&e.true_expr);
                e.false_expr.iter().for_each(|expr| self.whole(expr));
            }
            Expr::Filter(e) => {
                e.expr.iter().for_each(|expr| self.whole(expr));
                self.arguments(&e.args);
            }
            Expr::Test(e) => {
                self.whole(&e.expr);
                self.arguments(&e.args);
            }
            Expr::GetAttr(e) => self.whole(&e.expr),
            Expr::GetItem(e) => {
                self.whole(&e.expr);
                self.whole(&e.subscript_expr);
            }
            Expr::Call(e) => {
                self.whole(&e.expr);
                self.arguments(&e.args);
            }
            Expr::List(e) => self.list(expr, &e.items, &[]),
            // The span of a tuple without parentheses lacks its first item.
            Expr::Tuple(e)
                if e.items
                    .first()
                    .is_some_and(|first| first.span().start_offset < expr.span().start_offset) =>
            {
                e.items.iter().for_each(|item| self.whole(item));
            }
            Expr::Tuple(e) => self.list(expr, &e.items, &[]),
            Expr::Map(e) => self.list(expr, &e.keys, &e.values),
            Expr::Var(_) | Expr::Const(_) => {}
        }
        0
    }

    /// A list, whose items are in two slices; constants alone cannot nest.
    fn list(&mut self, expr: &Expr<'_>, items: &[Expr<'_>], more: &[Expr<'_>]) {
        let mut all = items.iter().chain(more);
        all.clone().for_each(|item| self.whole(item));
        if all.any(|item| !matches!(item, Expr::Const(_))) {
            self.mark(expr);
        }
    }

    fn arguments(&mut self, list: &[CallArg<'_>]) {
        for argument in list {
            match argument {
                CallArg::Pos(expr)
                | CallArg::Kwarg(_, expr)
                | CallArg::PosSplat(expr)
                | CallArg::KwargSplat(expr) => self.whole(expr),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_lists_go_through_the_filter_once() {
        let long = format!("{{{{ a{} }}}}", " + b".repeat(20));
        for (source, expected) in [
            ("1 + 1 {{ a - b }}", "1 + 1 {{ a - b }}"),
            ("é{{ a + b + c }}", "é{{ (a + b + c)|__charged }}"),
            (
                "{{ (a + b) * 2 + c|f(d + e) }}",
                "{{ (((a + b)|__charged) * 2 + c|f((d + e)|__charged))|__charged }}",
            ),
            ("{%- set x = [y + z] -%}", "{%- set x = ([(y + z)|__charged])|__charged -%}"),
            (
                "{% if not a + b in c %}{% endif %}",
                "{% if not (a + b)|__charged in c %}{% endif %}",
            ),
            (
                "{{ 'a' + b if c else d + 'e' }}",
                "{{ ('a' + b)|__charged if c else (d + 'e')|__charged }}",
            ),
            ("{% set a, b, c = x, [y], z %}", "{% set a, b, c = x, ([y])|__charged, z %}"),
            (
                "{% set a = (x, [2]) %}{% set a = x, %}",
                "{% set a = ((x, [2]))|__charged %}{% set a = x, %}",
            ),
            ("{{ {'k': v} }}{{ ['k', 1] }}", "{{ ({'k': v})|__charged }}{{ ['k', 1] }}"),
            ("{{ a +", "{{ a +"),
            (
                &long,
                &format!(
                    "{{{{ ((a{})|__charged{})|__charged }}}}",
                    " + b".repeat(16),
                    " + b".repeat(4)
                ),
            ),
        ] {
            let found = with_charges(source.to_owned(), &SyntaxConfig::default());
            assert_eq!(found, expected);
        }
    }
}
