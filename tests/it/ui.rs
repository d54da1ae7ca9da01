//! What rustc itself shows for some of the refused declarations: its spans are those of the tokens.

#[test]
fn rustc_points_at_the_tokens() {
    trybuild::TestCases::new().compile_fail("ui/err_*.rs");
}
