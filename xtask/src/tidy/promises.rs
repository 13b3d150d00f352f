//! `docs/promises.md` names tests as proofs: each of them must exist.

use super::Finding;
use super::code::code_of;
use super::tree::Tree;

const DOCUMENT: &str = "docs/promises.md";

/// Two words and no more may be another name, such as that of a command.
const WORDS_MIN: usize = 3;

pub(super) fn name_real_tests(tree: &Tree) -> Vec<Finding> {
    let Some(document) = tree.files.iter().find(|file| file.path == DOCUMENT) else {
        return Vec::new();
    };
    let code: Vec<String> = tree.rust().map(|file| code_of(&file.text)).collect();
    let mut found = Vec::new();
    for (number, line) in document.lines() {
        for name in line
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|name| is_test(name))
        {
            let definition = format!("fn {name}(");
            if !code.iter().any(|text| text.contains(&definition)) {
                found.push(Finding::new(document, number, format!("no test {name}")));
            }
        }
    }
    found
}

fn is_test(name: &str) -> bool {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    name.chars().all(is_part) && name.split('_').count() >= WORDS_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_in(document: &str) -> usize {
        let code = "//! Doc.\nfn a_named_test_exists() {}\n// fn a_commented_test_does_not() {}\n";
        name_real_tests(&Tree::of(&[(DOCUMENT, document), ("a.rs", code)])).len()
    }

    #[test]
    fn a_proof_that_does_not_exist_is_found() {
        assert_eq!(found_in("`a_named_test_exists` and `lodectl doctor`\n"), 0);
        assert_eq!(found_in("`a_test_that_is_gone`\n"), 1);
        assert_eq!(found_in("`a_commented_test_does_not`\n"), 1);
    }
}
