//! Each rule finds its fault and leaves its neighbours alone.

use super::*;

fn count(rule: fn(&Tree) -> Vec<Finding>, path: &str, text: &str) -> usize {
    rule(&Tree::of(&[(path, text)])).len()
}

#[test]
fn a_mark_of_unfinished_work_is_found_in_prose_and_code() {
    let mark = concat!("TO", "DO");
    assert_eq!(count(forbidden_words, "a.md", &format!("x {mark}: y\n")), 1);
    assert_eq!(count(forbidden_words, "a.md", &format!("MY{mark}S\n")), 0);
    assert_eq!(count(forbidden_words, "a.rs", "fn f() { todo!() }\n"), 1);
    assert_eq!(count(forbidden_words, "a.rs", "// todo!() is banned\n"), 0);
}

#[test]
fn a_path_of_one_machine_is_found() {
    let path = concat!("/ho", "me/me/x");
    assert_eq!(
        count(machine_paths, "a.toml", &format!("p = \"{path}\"\n")),
        1
    );
    assert_eq!(
        count(machine_paths, "a.toml", &format!("p = \"srv{path}\"\n")),
        0
    );
}

#[test]
fn unsafe_is_found_only_in_code_of_crates_that_may_not() {
    let text = "fn f() { unsafe { g() } }\n";
    assert_eq!(
        count(unsafe_where_allowed, "crates/lode-extent/src/a.rs", text),
        1
    );
    assert_eq!(
        count(unsafe_where_allowed, "crates/lode-bus/src/a.rs", text),
        0
    );
    let prose = "// unsafe\n#![deny(unsafe_code)]\n";
    assert_eq!(
        count(unsafe_where_allowed, "crates/lode-extent/src/a.rs", prose),
        0
    );
}

#[test]
fn an_expectation_without_reason_is_found_over_several_lines() {
    assert_eq!(
        count(attributes, "a.rs", "#[expect(\n    dead_code\n)]\n"),
        1
    );
    assert_eq!(
        count(
            attributes,
            "a.rs",
            "#[expect(\n    dead_code,\n    reason = \"r\"\n)]\n"
        ),
        0
    );
    assert_eq!(
        count(attributes, "a.rs", "#[allow(dead_code, reason = \"r\")]\n"),
        1
    );
    assert_eq!(count(attributes, "a.rs", "    #[ignore = \"slow\"]\n"), 1);
    assert_eq!(
        count(attributes, "a.rs", "#[ignore = \"writes an image\"]\n"),
        0
    );
}

#[test]
fn a_glob_import_is_found_except_in_a_modules_own_tests() {
    assert_eq!(count(glob_imports, "a.rs", "use a::b::*;\n"), 1);
    assert_eq!(count(glob_imports, "a.rs", "pub use a::{b::*, c};\n"), 1);
    assert_eq!(count(glob_imports, "a.rs", "    use super::*;\n"), 0);
}

#[test]
fn a_file_without_module_doc_is_found() {
    assert_eq!(count(module_docs, "a.rs", "use a::b;\n"), 1);
    assert_eq!(count(module_docs, "a.rs", "//! What it owns.\n"), 0);
}

#[test]
fn stray_white_space_is_found() {
    assert_eq!(count(white_space, "a.md", "a \nb"), 2);
    assert_eq!(count(white_space, "a.rs", "\tfn f() {}\n"), 1);
    assert_eq!(count(white_space, "a.md", "a\nb\n"), 0);
}
