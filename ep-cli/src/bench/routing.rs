//! Routings by name: `even`, `zipf:1.2`, `hot:0.9`, and with `+` what else is odd about them.

use ep_runtime::buffer::BufferOptions;
use ep_verify::oracle::{HotExperts, RoutingOptions};

/// A routing for any shape, and the name that it was given by.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RoutingName {
    text: String,
    /// The exponent of Zipf's law.
    skew: f64,
    /// Share of the entries that go to rank 0.
    hot: Option<f64>,
    absent: f64,
    repeated: f64,
}

impl RoutingName {
    /// What a name means; the error is a sentence.
    pub(super) fn parse(text: &str) -> Result<RoutingName, String> {
        let mut made =
            RoutingName { text: text.to_owned(), skew: 0.0, hot: None, absent: 0.0, repeated: 0.0 };
        let mut parts = text.split('+');
        match pair(parts.next().unwrap_or_default()) {
            ("even", None) => {}
            ("zipf", Some(exponent)) => made.skew = number(exponent, 10.0)?,
            ("hot", Some(part)) => made.hot = Some(number(part, 1.0)?),
            _ => return Err("it is not even, zipf:EXPONENT or hot:SHARE".to_owned()),
        }
        for part in parts {
            match pair(part) {
                ("absent", Some(part)) => made.absent = number(part, 1.0)?,
                ("repeated", Some(part)) => made.repeated = number(part, 1.0)?,
                _ => return Err(format!("`{part}` is neither absent:SHARE nor repeated:SHARE")),
            }
        }
        Ok(made)
    }

    /// Its name in results.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The routing of a problem.
    pub(super) fn options(&self, options: &BufferOptions, ranks: usize) -> RoutingOptions {
        let own = options.placement(ranks).experts(0);
        let experts = usize::try_from(own.end - own.start).unwrap_or(0);
        RoutingOptions {
            skew: self.skew,
            hot: self.hot.map(|share| HotExperts { share, experts }),
            absent: self.absent,
            repeated: self.repeated,
            ..RoutingOptions::even(options.topk, options.experts)
        }
    }
}

fn pair(text: &str) -> (&str, Option<&str>) {
    text.split_once(':').map_or((text, None), |(name, value)| (name, Some(value)))
}

fn number(text: &str, most: f64) -> Result<f64, String> {
    let found = text.parse().ok().filter(|number| (0.0..=most).contains(number));
    found.ok_or_else(|| format!("`{text}` is not a number from 0 to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_verify::oracle::Random;

    /// The shares of entries that go to each of two ranks, and of those that are absent.
    fn shares(name: &str) -> ([f64; 2], f64) {
        let shape = BufferOptions::new(4000, 16, 4, 64);
        let routing = RoutingName::parse(name).unwrap().options(&shape, 2);
        let routing = routing.routing(4000, &mut Random::new(5));
        let count = |wanted: &dyn Fn(i64) -> bool| {
            routing.experts.iter().filter(|expert| wanted(**expert)).count() as f64 / 16000.0
        };
        let found = [count(&|it| (0..32).contains(&it)), count(&|it| it >= 32)];
        let absent = count(&|it| it < 0);
        (found, absent)
    }

    fn near(found: f64, want: f64) -> bool {
        (found - want).abs() < 0.02
    }

    #[test]
    fn names_draw_what_they_say() {
        let ([first, second], absent) = shares("even");
        assert!(near(first, 0.5) && near(second, 0.5) && absent == 0.0, "{first} {second}");
        let ([first, second], _) = shares("hot:0.9");
        assert!(near(first, 0.9) && near(second, 0.1), "{first} {second}");
        let ([first, second], absent) = shares("hot:0.9+absent:0.25+repeated:0.1");
        assert!(near(absent, 0.25) && near(first, 0.9 * 0.75), "{first} {second} {absent}");
        // Four different experts a token: the first ones cannot take all that the law gives them.
        let ([first, _], _) = shares("zipf:1.2");
        let ([more, _], _) = shares("zipf:2.5");
        assert!(first > 0.75 && more > first, "{first} {more}");
    }

    #[test]
    fn repeated_entries_repeat() {
        let shape = BufferOptions::new(100, 16, 4, 64);
        let name = RoutingName::parse("even+repeated:1").unwrap();
        let routing = name.options(&shape, 2).routing(100, &mut Random::new(5));
        assert!((0..100).all(|token| {
            routing.experts_of(token).iter().all(|it| *it == routing.experts_of(token)[0])
        }));
    }

    #[test]
    fn wrong_names_are_told() {
        for (name, want) in [
            ("", "it is not even, zipf:EXPONENT or hot:SHARE"),
            ("even:1", "it is not even, zipf:EXPONENT or hot:SHARE"),
            ("zipf", "it is not even, zipf:EXPONENT or hot:SHARE"),
            ("hot:1.5", "`1.5` is not a number from 0 to 1"),
            ("zipf:NaN", "`NaN` is not a number from 0 to 10"),
            ("even+absent", "`absent` is neither absent:SHARE nor repeated:SHARE"),
            ("even+hot:0.5", "`hot:0.5` is neither absent:SHARE nor repeated:SHARE"),
            ("hot:0.5+repeated:-1", "`-1` is not a number from 0 to 1"),
        ] {
            assert_eq!(RoutingName::parse(name).unwrap_err(), want, "{name}");
        }
    }
}
