//! Reads errors, spills and lost performance from the log of NVRTC.

use std::fmt;

/// Registers that a function keeps in local memory, which no emitted kernel should need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spill {
    /// The function, by its name in the machine code.
    pub function: String,
    /// Bytes stored.
    pub stores: u32,
    /// Bytes loaded.
    pub loads: u32,
}

impl fmt::Display for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spill { function, stores, loads } = self;
        write!(f, "`{function}` spills registers: {stores} bytes stored, {loads} bytes loaded")
    }
}

/// The relevant remarks of the assembler; needs the option `-Xptxas=-v`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remarks {
    /// Every function that spills.
    pub spills: Vec<Spill>,
    /// Each line with "Potential Performance Loss", such as an ignored `setmaxnreg`.
    pub performance_losses: Vec<String>,
    /// Barriers of each kernel, for older CUBINs that do not contain this number.
    pub barriers: Vec<(String, u32)>,
}

impl Remarks {
    /// Reads a log.
    pub fn read(log: &str) -> Remarks {
        let mut remarks = Remarks::default();
        let mut kernel = "";
        let mut function = "";
        for line in log.lines() {
            if let Some(rest) = after(line, "Compiling entry function '") {
                kernel = rest.split('\'').next().unwrap_or_default();
            } else if let Some(rest) = after(line, "Function properties for ") {
                function = rest.trim();
            } else if line.contains("bytes spill stores") {
                let stores = number_before(line, " bytes spill stores");
                let loads = number_before(line, " bytes spill loads");
                if stores + loads > 0 {
                    remarks.spills.push(Spill { function: function.to_owned(), stores, loads });
                }
            } else if after(line, ": Used ").is_some() && line.contains(" barriers") {
                remarks.barriers.push((kernel.to_owned(), number_before(line, " barriers")));
            }
            if line.contains("Potential Performance Loss") {
                remarks.performance_losses.push(line.trim().to_owned());
            }
        }
        remarks
    }
}

/// The first error of a log.
pub(super) struct FirstError {
    pub(super) message: String,
    pub(super) at: Option<(String, usize)>,
}

/// Finds the first error; a log without any gives its own first line.
pub(super) fn first_error(log: &str) -> FirstError {
    log.lines().find_map(source_error).or_else(|| log.lines().find_map(assembler_error)).unwrap_or(
        FirstError {
            message: log.lines().next().unwrap_or("the log is empty").trim().to_owned(),
            at: None,
        },
    )
}

/// `k.cu(12): error: text`, `ep/rings.cuh(3): catastrophic error: text`.
fn source_error(line: &str) -> Option<FirstError> {
    let (place, message) =
        line.split_once(": error: ").or_else(|| line.split_once(": catastrophic error: "))?;
    let at = place.strip_suffix(')').and_then(|place| {
        let (file, number) = place.rsplit_once('(')?;
        Some((file.to_owned(), number.parse().ok()?))
    });
    Some(FirstError { message: message.trim().to_owned(), at })
}

/// `ptxas application ptx input, line 21; error   : text`: a line of the PTX, not of the source.
fn assembler_error(line: &str) -> Option<FirstError> {
    is_assembler_error(line).then(|| FirstError { message: line.trim().to_owned(), at: None })
}

fn is_assembler_error(line: &str) -> bool {
    line.starts_with("ptxas") && (line.contains("error") || line.contains("fatal"))
}

/// What the assembler says after its first error, which often names the instruction only then.
pub(super) fn assembler_errors(log: &str) -> String {
    const SHOWN: usize = 5;
    let lines = log.lines().filter(|line| is_assembler_error(line)).skip(1).take(SHOWN);
    lines.map(|line| format!("{line}\n")).collect()
}

/// The lines around `line` (from 1) with their numbers, the line itself marked.
pub(super) fn excerpt(text: &str, line: usize) -> String {
    const AROUND: usize = 2;
    let first = line.saturating_sub(AROUND + 1);
    let lines = text.lines().enumerate().skip(first).take(line.saturating_add(AROUND) - first);
    lines
        .map(|(index, text)| {
            let mark = if index + 1 == line { '>' } else { ' ' };
            format!("{mark} {:>5} | {text}\n", index + 1)
        })
        .collect()
}

fn after<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    line.split_once(mark).map(|(_, rest)| rest)
}

/// The number that stands right before `mark`; 0 where there is none.
fn number_before(line: &str, mark: &str) -> u32 {
    line.split_once(mark)
        .and_then(|(before, _)| before.rsplit(|c: char| !c.is_ascii_digit()).next())
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : (C7504) Potential Performance Loss: 'setmaxnreg' ignored.
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
ptxas         .     168 bytes stack frame, 332 bytes spill stores, 352 bytes spill loads
ptxas info    : Used 32 registers, used 6 barriers, 168 bytes cumulative stack size
ptxas info    : Function properties for _Z6helperfi
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
";

    #[test]
    fn reads_spills_losses_and_barriers() {
        let remarks = Remarks::read(LOG);
        assert_eq!(remarks.spills, [Spill { function: "k".to_owned(), stores: 332, loads: 352 }]);
        assert_eq!(remarks.performance_losses.len(), 1);
        assert_eq!(remarks.barriers, [("k".to_owned(), 6)]);
    }

    #[test]
    fn finds_the_first_error_with_its_line() {
        let log = "a.cu(2): warning: unused\nep/x.cuh(14): error: identifier \"zz\" is undefined\n";
        let first = first_error(log);
        assert_eq!(first.message, "identifier \"zz\" is undefined");
        assert_eq!(first.at, Some(("ep/x.cuh".to_owned(), 14)));
        let ptxas = first_error("ptxas application ptx input, line 21; error   : Unknown\n");
        assert_eq!(ptxas.at, None);
        assert!(ptxas.message.contains("Unknown"));
        assert_eq!(first_error("").message, "the log is empty");
    }

    #[test]
    fn numbers_the_lines_of_an_excerpt() {
        let text = "a\nb\nc\nd\ne\nf\n";
        assert_eq!(excerpt(text, 1), ">     1 | a\n      2 | b\n      3 | c\n");
        assert_eq!(
            excerpt(text, 4),
            "      2 | b\n      3 | c\n>     4 | d\n      5 | e\n      6 | f\n"
        );
        assert_eq!(excerpt(text, 0), "      1 | a\n      2 | b\n");
        assert_eq!(excerpt(text, 99), "");
    }
}
