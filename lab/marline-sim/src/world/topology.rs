//! Topology: the owner of each address, and the link from one address to another.

use core::net::IpAddr;
use std::collections::BTreeMap;

use super::{LinkId, NodeId};

#[derive(Debug, Default)]
pub(super) struct Topology {
    owners: BTreeMap<IpAddr, NodeId>,
    routes: BTreeMap<(IpAddr, IpAddr), LinkId>,
}

impl Topology {
    pub(super) fn set_owner(&mut self, address: IpAddr, owner: Option<NodeId>) {
        match owner {
            Some(node) => self.owners.insert(address, node),
            None => self.owners.remove(&address),
        };
    }

    pub(super) fn owner(&self, address: IpAddr) -> Option<NodeId> {
        self.owners.get(&address).copied()
    }

    pub(super) fn set_route(&mut self, from: IpAddr, to: IpAddr, link: LinkId) {
        self.routes.insert((from, to), link);
    }

    /// Links in the reverse direction of this one.
    pub(super) fn reverse_links(&self, link: LinkId) -> impl Iterator<Item = LinkId> {
        let there = self.routes.iter().filter(move |(_, leads)| **leads == link);
        there.filter_map(|((from, to), _)| self.route(*to, *from))
    }

    pub(super) fn route(&self, from: IpAddr, to: IpAddr) -> Option<LinkId> {
        self.routes.get(&(from, to)).copied()
    }
}
