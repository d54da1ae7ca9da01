//! The network cards that kernels can write to themselves, and what the cards can access.

use std::fmt;
use std::path::PathBuf;

use super::{Report, line};

/// Libraries and cards for `ibgda`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardsFound {
    /// The folder of libibverbs and libmlx5.
    pub folder: PathBuf,
    /// A line for each port of each card; the error says why they cannot be listed.
    pub ports: Result<Vec<String>, String>,
    /// Whether the libraries register a dma-buf.
    pub takes_dma_buf: bool,
    /// Whether the kernel module nvidia_peermem is loaded.
    pub has_peer_memory: bool,
}

/// Looks for them; the error says why there are none and what to do.
#[cfg(target_os = "linux")]
pub(super) fn look() -> Result<CardsFound, String> {
    use crate::gpu::has_peer_memory;
    use crate::net::{CardPort, NetError, Verbs, card_ports};

    let verbs = Verbs::find().map_err(|error| error.to_string())?;
    let line = |port: &Result<CardPort, NetError>| match port {
        Ok(port) => port.to_string(),
        Err(error) => error.to_string(),
    };
    let lines = |ports: Vec<_>| ports.iter().map(line).collect();
    Ok(CardsFound {
        folder: verbs.folder().to_owned(),
        ports: card_ports(verbs).map(lines).map_err(|error| error.to_string()),
        takes_dma_buf: verbs.takes_dma_buf(),
        has_peer_memory: has_peer_memory(),
    })
}

/// Looks for them; the error says why there are none.
#[cfg(not(target_os = "linux"))]
pub(super) fn look() -> Result<CardsFound, String> {
    Err("kernels write to network cards only on Linux".to_owned())
}

impl CardsFound {
    /// How a card would get at the memory of these GPUs.
    fn memory(&self, has_dma_buf: bool) -> &'static str {
        match (self.takes_dma_buf && has_dma_buf, self.has_peer_memory) {
            (true, _) => "GPU memory is registered as a dma-buf",
            (false, true) => "GPU memory is registered by nvidia_peermem",
            (false, false) => "GPU memory cannot be registered, so rows are in host memory",
        }
    }
}

impl Report {
    pub(super) fn write_cards(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = match &self.cards {
            Ok(found) => found,
            Err(why) => return line(f, "cards", why),
        };
        let text = format!(
            "libibverbs and libmlx5 in {}; kernels that write to a card (ibgda) have not run on hardware yet",
            found.folder.display()
        );
        line(f, "cards", &text)?;
        match &found.ports {
            Ok(ports) if ports.is_empty() => line(f, "  ports", "none: there is no card")?,
            Ok(ports) => ports.iter().try_for_each(|port| line(f, "  port", port))?,
            Err(why) => line(f, "  ports", &format!("not listed: {why}"))?,
        }
        match self.gpus.as_slice() {
            [] => Ok(()),
            gpus => line(f, "  memory", found.memory(gpus.iter().all(|gpu| gpu.dma_buf))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::tests::{bare, gpu};

    #[test]
    fn cards_are_listed_with_what_they_reach() {
        let found = CardsFound {
            folder: PathBuf::from("/usr/lib"),
            ports: Ok(vec!["mlx5_0:1: InfiniBand, active, LID 7".to_owned()]),
            takes_dma_buf: true,
            has_peer_memory: false,
        };
        let said =
            |found: CardsFound, gpus| Report { cards: Ok(found), gpus, ..bare() }.to_string();
        let text = said(found.clone(), vec![gpu((9, 0))]);
        for part in [
            "cards         libibverbs and libmlx5 in /usr/lib; kernels",
            "have not run on hardware yet",
            "  port        mlx5_0:1: InfiniBand, active, LID 7",
            "  memory      GPU memory is registered as a dma-buf",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let old = CardsFound { takes_dma_buf: false, ports: Ok(Vec::new()), ..found };
        let text = said(old.clone(), vec![gpu((9, 0))]);
        assert!(text.contains("  memory      GPU memory cannot be registered"), "{text}");
        assert!(text.contains("  ports       none: there is no card"), "{text}");
        let with = CardsFound { has_peer_memory: true, ports: Err("no right".to_owned()), ..old };
        let text = said(with.clone(), vec![gpu((9, 0))]);
        assert!(text.contains("registered by nvidia_peermem"), "{text}");
        assert!(text.contains("  ports       not listed: no right"), "{text}");
        assert!(!said(with, Vec::new()).contains("  memory"), "there is no GPU");
        assert!(bare().to_string().contains("cards         there is no libibverbs"));
    }
}
