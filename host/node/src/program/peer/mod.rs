//! Other nodes, as a hub has them: what is said between two of them, and how it gets there.

mod amounts;
mod line;
mod messages;
mod neighbours;
mod outside;
mod remnant;

pub use amounts::Amounts;
pub(crate) use line::{PeerEnd, PeerLine};
pub use neighbours::Neighbours;

pub(crate) use messages::{Callee, Errand, ErrandWork, Returns, Root, Said, Sent};

pub(crate) use remnant::{Remnant, RemnantValue};

pub(crate) use outside::{Fetched, Loaded, Outside, Tell, Wanted};

use sandbar_core::NodeId;
use sandbar_sched::ResourceSet;

/// A node that this one can give tasks to, and take tasks from.
#[derive(Debug)]
pub(crate) struct NewPeer {
    pub(crate) node: NodeId,
    pub(crate) resources: ResourceSet,
    /// So many tasks run there at once that ask for a processor.
    pub(crate) slots: u32,
    pub(crate) line: PeerLine,
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    /// From a line on to the brace that ends what it begins.
    fn item<'a>(text: &'a str, begins: &str) -> &'a str {
        let from = text.find(begins).unwrap_or_else(|| panic!("{begins} is not there"));
        let end = text[from..].find("\n}\n").unwrap_or_else(|| panic!("{begins} does not end"));
        &text[from..from + end]
    }

    /// Whoever changes what nodes say to each other, once a version that says it was released, raises
    /// `sandbar_wire::PROTOCOL_VERSION`: nodes of two versions refuse each other, rather than misunderstand. Then the line
    /// below is changed.
    #[test]
    fn what_nodes_say_is_of_a_version() {
        let asks = include_str!("../../cluster/asks.rs");
        let fits = include_str!("../../cluster/fits.rs");
        let messages = include_str!("messages.rs");
        let said = [
            &messages[messages.find("/// A job of a cluster.").expect("it is there")..],
            item(include_str!("amounts.rs"), "pub struct Amounts"),
            item(include_str!("../../../../worker/src/program/messages.rs"), "pub struct AttemptUsage"),
            item(include_str!("remnant.rs"), "pub(crate) struct Remnant"),
            item(include_str!("remnant.rs"), "pub(crate) enum RemnantValue"),
            item(asks, "pub(super) enum Ask"),
            item(fits, "struct Ask"),
            item(fits, "struct Given"),
        ];
        // What it means, not how that is put in words.
        let said = said.concat();
        let lines: Vec<&str> = said.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let digest = Sha256::digest(lines.join("\n"));
        let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((sandbar_wire::PROTOCOL_VERSION, digest.as_str()), (1, "0a15b2138030db7c"));
    }
}
