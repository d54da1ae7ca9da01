//! The networks between machines: libfabric, and its providers.

use std::fmt;
use std::path::PathBuf;

use super::{Report, line};

/// The libfabric that this process uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibfabricFound {
    /// Path of the library.
    pub path: PathBuf,
    /// Version of the library.
    pub version: (u32, u32),
    /// Each provider with what it can do here, one line per device; the error says what is missing.
    pub providers: Vec<(&'static str, Result<Vec<String>, String>)>,
}

impl LibfabricFound {
    /// Whether a provider has a device here.
    pub(super) fn has(&self, provider: &str) -> bool {
        self.providers.iter().any(|(name, offers)| *name == provider && offers.is_ok())
    }
}

impl fmt::Display for LibfabricFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.version;
        write!(f, "{major}.{minor} at {}", self.path.display())
    }
}

/// Looks for it; the error says why there is none and what to do.
#[cfg(target_os = "linux")]
pub(super) fn look() -> Result<LibfabricFound, String> {
    use crate::net::{Fabric, Offer, Provider};

    let fabric = Fabric::find().map_err(|error| error.to_string())?;
    let providers = Provider::ALL.map(|provider| {
        let lines = |offers: Vec<Offer>| offers.iter().map(Offer::to_string).collect();
        let offers = fabric.offers(provider, None).map(lines);
        (provider.name(), offers.map_err(|error| error.to_string()))
    });
    let (path, version) = (fabric.path().to_owned(), fabric.version());
    Ok(LibfabricFound { path, version, providers: providers.into() })
}

/// Looks for it; the error says why there is none.
#[cfg(not(target_os = "linux"))]
pub(super) fn look() -> Result<LibfabricFound, String> {
    Err("rows move between machines only on Linux".to_owned())
}

impl Report {
    /// Within one machine no network is needed, so that one that is missing is no flaw by itself.
    pub(super) fn network_advice(&self) -> Option<String> {
        let uses_nics = |it: &LibfabricFound| it.has("verbs") || it.has("efa");
        let nics: Vec<&str> = self.nics.iter().map(|nic| nic.name.as_str()).collect();
        let unused = !nics.is_empty() && !self.libfabric.as_ref().is_ok_and(uses_nics);
        unused.then(|| {
            format!(
                "There are network devices ({}) that rows cannot use: libfabric has to know verbs or \
                 efa (the packages libfabric1 and ibverbs-providers).",
                nics.join(", ")
            )
        })
    }

    pub(super) fn write_networks(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = match &self.libfabric {
            Ok(found) => found,
            Err(_) => return line(f, "libfabric", "not found; rows cannot move between machines"),
        };
        line(f, "libfabric", &found.to_string())?;
        for (provider, offers) in &found.providers {
            let name = format!("  {provider}");
            match offers {
                Ok(offers) => offers.iter().try_for_each(|offer| line(f, &name, offer))?,
                Err(why) => line(f, &name, &format!("not here: {why}"))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Nic;
    use crate::doctor::tests::bare;

    #[test]
    fn networks_are_listed_with_what_they_can_do() {
        let nic = Nic {
            name: "mlx5_0:1".to_owned(),
            link: "InfiniBand".to_owned(),
            state: "ACTIVE".to_owned(),
            rate: "400 Gb/sec".to_owned(),
        };
        let found = |verbs: Result<Vec<String>, String>| LibfabricFound {
            path: PathBuf::from("/lib/libfabric.so.1"),
            version: (2, 5),
            providers: vec![("tcp", Ok(vec!["tcp on eth0".to_owned()])), ("verbs", verbs)],
        };
        let said = "There are network devices (mlx5_0:1)";
        let without = Report {
            nics: vec![nic.clone()],
            libfabric: Ok(found(Err("no data".to_owned()))),
            ..bare()
        };
        let text = without.to_string();
        for part in [
            "libfabric     2.5 at /lib/libfabric.so.1",
            "  tcp         tcp on eth0",
            "  verbs       not here: no data",
            said,
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let with = Report { libfabric: Ok(found(Ok(vec!["mlx5_0".to_owned()]))), ..without };
        assert!(!with.to_string().contains(said));
        assert!(!bare().to_string().contains(said), "nobody misses what is not there");
    }
}
