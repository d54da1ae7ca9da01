//! Random declarations are legal, and mean something on any number of ranks.

use super::*;
use crate::meaning::{Drawing, Invented};

/// Declarations; each is drawn, checked and interpreted.
const SEEDS: u64 = 500;

/// What the front end says to a declaration, or what a call of it means.
fn meaning(invented: &Invented, seed: u64) -> Result<Vec<Outcome>, String> {
    let source = invented.source();
    let (file, mut errors) = syntax::parse(source.parse().map_err(|_| "brackets".to_string())?);
    if errors.is_empty() {
        errors.extend(check::check(&file));
    }
    if !errors.is_empty() {
        return Err(errors.to_text(&source));
    }
    let all: Vec<Pipeline> =
        file.pipelines.iter().map(|pipeline| lower::lower(&file, pipeline)).collect();
    let known: Vec<&Pipeline> = all.iter().collect();
    // What each of them computes makes no difference here.
    let halved = |values: &[Scalar]| match values {
        [Scalar::Real(value)] => Scalar::Real(value * 0.5),
        other => panic!("an invented function takes one f32, not {other:?}"),
    };
    let own = known.iter().flat_map(|ir| &ir.cuda_fns);
    let functions = own.map(|function| (function.name.clone(), &halved as &Function)).collect();
    let ranks = 1 + seed as i64 % 5;
    let mut drawing = Drawing::new(seed, &known, &functions).number("ranks", ranks);
    let mut outcomes = Vec::new();
    for pipeline in &all {
        let drawn = drawing.draw(pipeline).map_err(|error| error.to_string())?;
        outcomes.push(drawn.run(&functions).map_err(|wrong| wrong.to_string())?);
    }
    Ok(outcomes)
}

#[test]
fn every_seed_is_legal_and_means_something() {
    for seed in 0..SEEDS {
        let invented = Invented::new(seed);
        if let Err(words) = meaning(&invented, seed) {
            let small = invented.shrunk(&mut |less| meaning(less, seed).is_err());
            panic!("seed {seed}: {words}\n{}", small.source());
        }
    }
}
