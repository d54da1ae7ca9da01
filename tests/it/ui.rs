//! What rustc itself shows for some of the refused declarations: its spans are those of the tokens.

use std::fs;
use std::path::Path;

use crate::errors::fixtures;

#[test]
fn rustc_points_at_the_tokens() {
    trybuild::TestCases::new().compile_fail("ui/err_*.rs");
}

/// Right declarations, and calls that do not fit them: their types say so.
#[test]
fn calls_that_do_not_fit_do_not_compile() {
    trybuild::TestCases::new().compile_fail("ui/calls/*.rs");
}

/// rustc wants a file of its own for each, with a `main`; its text is that of the case.
#[test]
fn what_rustc_is_shown_are_refused_cases() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui");
    let cases = fixtures();
    for entry in fs::read_dir(folder).expect("tests/ui is a folder") {
        let path = entry.expect("tests/ui can be read").path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let name = path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
        let case = cases.iter().find(|(case, _)| name.strip_prefix("err_") == Some(case));
        let (_, case) = case.unwrap_or_else(|| panic!("{name} is no case of tests/errors"));
        let text = fs::read_to_string(&path).expect("a source is text");
        assert_eq!(text, format!("{case}\nfn main() {{}}\n"), "{name}");
    }
}
