//! Pictures: the few elements of SVG that ours are made of.

use std::fmt::Write as _;

/// A picture of this size on white; `marks` is what stands in it.
pub(crate) fn picture(width: f64, height: f64, marks: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{marks}</svg>\n"
    )
}

/// Words at a place: `anchor` is `start`, `middle` or `end` of them.
pub(crate) fn text(out: &mut String, x: f64, y: f64, anchor: &str, colour: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{words}</text>"
    );
}

/// A rectangle from its upper left corner.
pub(crate) fn rectangle(
    out: &mut String,
    corner: [f64; 2],
    size: [f64; 2],
    fill: &str,
    edge: &str,
) {
    let ([x, y], [width, height]) = (corner, size);
    let _ = writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\" stroke=\"{edge}\"/>"
    );
}
