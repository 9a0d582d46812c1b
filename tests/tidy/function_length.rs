//! Functions short enough to be read at once.
//!
//! Finds `fn NAME` in the code, then the body: the first `{` outside parentheses and brackets.
//! A signature that ends in `;` has no body. Counts from the line of `fn` to that of the closing
//! brace; comments and blank lines count, for they are read too.

use crate::repository::{SourceFile, Violation};
use crate::rust_source::RustSource;

/// Reports functions of more than `max_lines` lines.
pub(crate) fn check(file: &SourceFile, source: &RustSource, max_lines: usize) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut words = source.words().peekable();
    while let Some((at, word)) = words.next() {
        let Some(&(name_at, name)) = words.peek() else { break };
        // A function pointer type, `fn(…)`, has no name after the keyword.
        let between = &source.code[at + word.len()..name_at];
        if word != "fn" || !between.trim_matches(['$', ' ', '\n']).is_empty() {
            continue;
        }
        let Some(end) = body_end(&source.code, name_at) else { continue };
        let first_line = source.line_of(at);
        let num_lines = source.line_of(end) - first_line + 1;
        if num_lines > max_lines {
            let message = format!("function {name} has {num_lines} lines, at most {max_lines}");
            violations.push(Violation::new(file, first_line, message));
        }
    }
    violations
}

/// Returns the position of the brace that closes the body of the function whose name is at `from`.
fn body_end(code: &str, from: usize) -> Option<usize> {
    let mut brackets = 0;
    let mut braces = 0;
    for (at, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'(' | b'[' => brackets += 1,
            b')' | b']' => brackets -= 1,
            b';' if brackets == 0 && braces == 0 => return None,
            // Braces inside brackets of a signature are const expressions; inside a body, brackets
            // and braces nest, so counting both at once is exact.
            b'{' if brackets == 0 || braces > 0 => braces += 1,
            b'}' if braces > 0 => {
                braces -= 1;
                if braces == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn too_long(text: &str) -> Vec<(usize, String)> {
        let file = SourceFile { path: "a.rs".to_owned(), text: text.to_owned() };
        let violations = check(&file, &RustSource::new(text), 3);
        violations.into_iter().map(|violation| (violation.line, violation.message)).collect()
    }

    #[test]
    fn a_function_one_line_too_long_is_reported_at_its_first_line() {
        assert_eq!(too_long("fn f() {\n    a;\n}"), []);
        let expected = "function f has 4 lines, at most 3".to_owned();
        assert_eq!(too_long("\nfn f() {\n    a;\n    b;\n}"), [(2, expected)]);
    }

    #[test]
    fn braces_in_literals_and_comments_do_not_end_a_body() {
        assert_eq!(too_long("fn f() {\n'}'; // }\n\"}\";\n}").len(), 1);
    }

    #[test]
    fn array_types_and_closures_in_calls_belong_to_their_function() {
        assert_eq!(too_long("fn f(x: [u8; 4]) -> [u8; 2] {\ng(|| {\n});\n}").len(), 1);
        assert_eq!(too_long("fn f(x: [u8; 4]);\n\n\n\nstruct S {}"), []);
    }

    #[test]
    fn function_pointer_types_are_not_functions() {
        assert_eq!(too_long("type F = fn(u8);\n\n\n\nstruct S {}"), []);
    }

    #[test]
    fn methods_are_measured_one_by_one() {
        assert_eq!(too_long("impl S {\nfn f() {\n}\nfn g() {\n1;\n2;\n}\n}").len(), 1);
    }
}
