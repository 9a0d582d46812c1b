//! llama.cpp's GBNF, translated to Lark.
//!
//! GBNF has no lexer: each character is matched by the grammar itself. The parser has one, and it is
//! what makes masks fast, so whatever part of a grammar is regular becomes one terminal: a rule that
//! reaches no recursive rule, and a run of such parts inside one that does. Terminals take the longest
//! text that they match. Where that differs from GBNF (a terminal that can swallow the beginning of
//! what must follow in another rule) fewer texts are allowed, never others.
//!
//! Source: `grammars/README.md` and `src/llama-grammar.cpp` of llama.cpp, for the syntax.

mod ast;
mod lark_writer;
mod parser;

use crate::GrammarError;

/// Translates a grammar whose first rule is `root`.
///
/// # Errors
/// Says where the syntax is wrong, and names rules that are missing or defined twice and elements that
/// Lark has no equal for.
pub(crate) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let grammar = parser::parse(text).map_err(GrammarError::whole)?;
    Ok(lark_writer::write(&grammar))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_parts_become_terminals_and_the_rest_rules() {
        let gbnf = r#"
# A list of words.
root ::= "(" ws item ("," ws item)* ")" | ""
item ::= word | root
word ::= [a-z_-]+ ws
ws   ::= | " " | "\n" [ \t]{0,20}
unused ::= "x"
"#;
        let lark = to_lark(gbnf).unwrap();
        // Numbers follow the order in which rules are met.
        let expected = [
            "start: r0",
            "r0: M0 r2 ((M1 r2))* M2 | \"\"",
            "r2: T3 | r0",
            "T3: (/[\\x{61}-\\x{7A}\\x{5F}-\\x{5F}\\x{2D}-\\x{2D}]/)+ T1",
        ];
        for line in expected {
            assert!(lark.lines().any(|found| found == line), "{line}\n{lark}");
        }
        assert!(!lark.contains("\"x\""), "what root does not reach is left out: {lark}");
    }

    #[test]
    fn literals_and_bounds_are_written_as_lark_reads_them() {
        let lark = to_lark("root ::= (\"a\\\"\" .){2} [^\\x00-\\x1F\\]]{3,} \"é\"?").unwrap();
        assert!(lark.contains("\"a\\\"\" /(?s:.)/"), "{lark}");
        assert!(lark.contains(")~2..2"), "{lark}");
        assert!(lark.contains("[^\\x{0}-\\x{1F}\\x{5D}-\\x{5D}]"), "{lark}");
        assert!(lark.contains("(\"é\")?"), "{lark}");
    }

    #[test]
    fn operators_behind_an_element_apply_one_after_the_other_and_are_few() {
        let lark = to_lark("root ::= \"a\"{2}? [b]+{3}*").unwrap();
        assert!(lark.contains("((\"a\")~2..2)?"), "{lark}");
        let many = format!("root ::= \"a\"{}", "*".repeat(200_000));
        assert!(to_lark(&many).unwrap_err().message.contains("operators"));
    }
}
