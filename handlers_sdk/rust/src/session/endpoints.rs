//! The endpoints of brokers: decides which to connect, when to connect again, and which to disconnect.

use std::collections::{HashMap, HashSet};

use super::brokers::PeerId;
use super::ordered::OrderedMap;
use super::Session;
use crate::actions::{Action, Event, Level, Link, NEVER};
use crate::protocol::limits::{SERVER_KEY_RETRY_MS, SOCKET_REBUILD_MS, UNLISTED_MS};
use crate::protocol::messages::Endpoints;

const CHECK_EVERY_MS: f64 = 1_000.0;

/// The connected links, and the broker at each link if it is known.
#[derive(Debug)]
pub(super) struct BrokerLinks {
    pub check_at_ms: f64,
    broker_of: OrderedMap<Link, Option<String>>,
    connected_ms: HashMap<Link, f64>,
    listed_ms: OrderedMap<Link, f64>, // of links learned from a list: when a list last named the broker
    lists: HashMap<PeerId, HashSet<String>>, // the brokers that each broker listed in its open session
    keys: HashMap<String, Vec<String>>, // the CURVE keys that each broker lists for itself, the current one first
    key_of: HashMap<Link, String>,    // of links whose latest key is not the configured one
    moved: HashMap<String, (Link, Option<String>)>, // the listed address and key, if another one is connected
    ignored: HashSet<String>,         // brokers that need CURVE keys, which the worker does not have
}

impl BrokerLinks {
    pub fn new(links: &[Link]) -> Self {
        let mut broker_of = OrderedMap::default();
        for link in links {
            broker_of.insert(link.clone(), None);
        }
        Self {
            check_at_ms: NEVER,
            broker_of,
            connected_ms: HashMap::new(),
            listed_ms: OrderedMap::default(),
            lists: HashMap::new(),
            keys: HashMap::new(),
            key_of: HashMap::new(),
            moved: HashMap::new(),
            ignored: HashSet::new(),
        }
    }

    pub fn start(&mut self, now_ms: f64) {
        self.connected_ms = self.broker_of.iter().map(|(link, _)| (link.clone(), now_ms)).collect();
        self.check_at_ms = now_ms + SERVER_KEY_RETRY_MS;
    }

    fn unnamed(&self) -> Vec<Link> {
        self.broker_of.iter().filter(|(_, broker)| broker.is_none()).map(|(link, _)| link.clone()).collect()
    }

    fn names(&self) -> HashSet<&str> {
        self.broker_of.values().flatten().map(|broker| &**broker).collect()
    }

    /// The link to this broker, if it is known.
    pub fn link_of(&self, broker: &str) -> Option<Link> {
        let mut links = self.broker_of.iter();
        links.find(|(_, named)| named.as_deref() == Some(broker)).map(|(link, _)| link.clone())
    }

    /// Notes the address of a broker that was learned from a list, if another one is connected.
    fn note_address(&mut self, entry: &Endpoints, link: &Link, has_curve: bool) {
        let Some(connected) = self.link_of(&entry.broker) else { return };
        if self.listed_ms.get(&connected).is_none() {
            return;
        }
        if *link == connected || (entry.server_key.is_some() && !has_curve) {
            self.moved.remove(&entry.broker);
        } else {
            self.moved.insert(entry.broker.clone(), (link.clone(), entry.server_key.clone()));
        }
    }

    /// The key for the next attempt. A broker that has listed several keys may have changed its key meanwhile.
    fn next_key(&self, link: &Link, keys: &[String]) -> String {
        let used = self.key_of.get(link).or_else(|| keys.first().filter(|_| keys.len() > 1));
        let at = keys.iter().position(|key| Some(key) == used).map_or(0, |at| at + 1);
        keys[at % keys.len()].clone()
    }
}

impl Session {
    /// Connects to the brokers that this broker lists. A configured endpoint may be the same broker with another
    /// address.
    pub(super) fn learn(&mut self, peer: PeerId, listed: &[Endpoints], now_ms: f64) {
        let links = &mut self.endpoints;
        links.lists.insert(peer, listed.iter().map(|entry| entry.broker.clone()).collect());
        let mut known: HashSet<String> = links.names().into_iter().map(str::to_owned).collect();
        let listed: Vec<(&Endpoints, Link)> = listed
            .iter()
            .filter(|entry| !entry.steps.is_empty() && !entry.results.is_empty())
            .map(|entry| (entry, Link::new(&*entry.steps, &*entry.results)))
            .collect();
        for (entry, link) in &listed {
            if let Some(None) = links.broker_of.get(link) {
                links.broker_of.insert(link.clone(), Some(entry.broker.clone()));
                known.insert(entry.broker.clone());
            }
        }
        let mut unnamed = links.unnamed();
        let own = &self.brokers[peer].id;
        if !known.contains(own) && unnamed.len() == 1 {
            if let Some(link) = unnamed.pop() {
                links.broker_of.insert(link, Some(own.clone()));
            }
        }
        let own_keys: Vec<String> = listed
            .iter()
            .filter(|(entry, _)| self.config.has_curve && entry.broker == *own)
            .filter_map(|(entry, _)| entry.server_key.clone())
            .collect();
        let own = own.clone();
        for (entry, link) in listed.clone() {
            if self.brokers.contains(&entry.broker) || known.contains(&entry.broker) || !unnamed.is_empty() {
                continue;
            }
            if entry.server_key.is_some() && !self.config.has_curve {
                if links.ignored.insert(entry.broker.clone()) {
                    self.out.log(Level::Warning, Event::BrokerIgnored { broker: entry.broker.clone() });
                }
                continue;
            }
            known.insert(entry.broker.clone());
            links.broker_of.insert(link.clone(), Some(entry.broker.clone()));
            links.connected_ms.insert(link.clone(), now_ms);
            links.listed_ms.insert(link.clone(), now_ms);
            self.out.add(Action::Connect { link, server_key: entry.server_key.clone() });
        }
        let mut noted = HashSet::new();
        for (entry, link) in &listed {
            if noted.insert(&*entry.broker) {
                links.note_address(entry, link, self.config.has_curve);
            }
        }
        self.follow_key(&own, own_keys, now_ms);
    }

    /// Connects again with the broker's current key if it has changed.
    fn follow_key(&mut self, broker: &str, keys: Vec<String>, now_ms: f64) {
        let Some(current) = keys.first().cloned() else { return };
        let before = self.endpoints.keys.insert(broker.to_owned(), keys);
        let Some(link) = self.endpoints.link_of(broker) else { return };
        let is_changed = before.map_or(false, |before| before.first() != Some(&current));
        if is_changed && self.endpoints.key_of.get(&link) != Some(&current) {
            self.connect_with(link.clone(), current, now_ms);
            self.out.log(Level::Info, Event::ServerKeyChanged { link, broker: broker.to_owned() });
        }
    }

    fn connect_with(&mut self, link: Link, key: String, now_ms: f64) {
        self.endpoints.key_of.insert(link.clone(), key.clone());
        self.endpoints.connected_ms.insert(link.clone(), now_ms);
        self.out.add(Action::Disconnect { link: link.clone() });
        self.out.add(Action::Connect { link, server_key: Some(key) });
    }

    /// The link to this broker, if it is known.
    pub fn link_of(&self, broker: &str) -> Option<Link> {
        self.endpoints.link_of(broker)
    }

    /// The links to brokers that no session is open with.
    pub fn links_without_session(&self) -> Vec<Link> {
        let links = &self.endpoints;
        let names = links.names();
        let strangers = self.brokers.iter().filter(|peer| peer.session.is_some() && !names.contains(&*peer.id)).count();
        let is_open = |broker: &str| self.brokers.named(broker).map_or(false, |peer| peer.session.is_some());
        let mut closed: Vec<Link> = links
            .broker_of
            .iter()
            .filter(|(_, broker)| broker.as_ref().map_or(false, |broker| !is_open(broker)))
            .map(|(link, _)| link.clone())
            .collect();
        let unnamed = links.unnamed();
        if strangers < unnamed.len() {
            closed.extend(unnamed);
        }
        closed
    }

    /// Disconnects brokers that are no longer listed, and connects silent ones again.
    pub(super) fn check_links(&mut self, now_ms: f64) {
        self.disconnect_unlisted(now_ms);
        self.rebuild_silent(now_ms);
        self.endpoints.check_at_ms = now_ms + CHECK_EVERY_MS;
    }

    /// Disconnects brokers that were learned from a list, are absent from every list for long, and own nothing.
    fn disconnect_unlisted(&mut self, now_ms: f64) {
        let links = &mut self.endpoints;
        let has_session = |peer: &PeerId| self.brokers[*peer].session.is_some();
        let listed: HashSet<String> =
            links.lists.iter().filter(|(peer, _)| has_session(peer)).flat_map(|(_, list)| list.clone()).collect();
        let learned: Vec<(Link, f64)> = links.listed_ms.iter().map(|(link, ms)| (link.clone(), *ms)).collect();
        for (link, listed_ms) in learned {
            let broker = links.broker_of.get(&link).cloned().flatten().unwrap_or_default();
            if listed.contains(&broker) {
                links.listed_ms.insert(link, now_ms);
                continue;
            }
            let peer = self.brokers.find(&broker);
            let is_unused = peer
                .map_or(true, |peer| self.brokers[peer].session.is_none() && self.holdings.of_broker(peer).is_empty());
            if now_ms - listed_ms < UNLISTED_MS || !is_unused {
                continue;
            }
            links.listed_ms.remove(&link);
            links.broker_of.remove(&link);
            links.connected_ms.remove(&link);
            links.keys.remove(&broker);
            links.moved.remove(&broker);
            links.key_of.remove(&link);
            if let Some(peer) = peer {
                links.lists.remove(&peer);
                self.brokers.forget(peer);
            }
            self.out.add(Action::Disconnect { link: link.clone() });
            self.out.log(Level::Info, Event::LinkRemoved { link, broker });
        }
    }

    /// Connects silent links again. A refused or dead connection reports no error, and never recovers by itself.
    fn rebuild_silent(&mut self, now_ms: f64) {
        let links = &mut self.endpoints;
        let since_ms = now_ms - SOCKET_REBUILD_MS;
        let names = links.names();
        let unnamed = links.unnamed().len();
        let is_stranger = |peer: &&super::brokers::Peer| {
            peer.session.is_some() && !names.contains(&*peer.id) && peer.answered_ms > since_ms
        };
        let strangers = self.brokers.iter().filter(is_stranger).count();
        let mut again = Vec::new(); // links of brokers with keys, and the key to use
        for (link, broker) in links.broker_of.iter() {
            if broker.is_none() && strangers >= unnamed {
                continue;
            }
            let keys = broker.as_ref().and_then(|broker| links.keys.get(broker)).map_or(&[][..], |keys| keys);
            let silent_ms = if keys.len() > 1 { SERVER_KEY_RETRY_MS } else { SOCKET_REBUILD_MS };
            let peer = broker.as_ref().and_then(|broker| self.brokers.named(broker));
            let answered_ms = peer.map_or(-NEVER, |peer| peer.answered_ms);
            let connected_ms = links.connected_ms.get(link).copied().unwrap_or(now_ms);
            if answered_ms.max(connected_ms) <= now_ms - silent_ms {
                let key = if keys.is_empty() { None } else { Some(links.next_key(link, keys)) };
                again.push((link.clone(), broker.clone(), key));
            }
        }
        for (link, broker, key) in again {
            let moved = broker.as_ref().and_then(|broker| self.endpoints.moved.remove(broker));
            if let Some((to, key)) = moved.filter(|(to, _)| self.endpoints.broker_of.get(to).is_none()) {
                self.move_link(&link, to, key, now_ms);
                continue;
            }
            if let Some(key) = key {
                self.connect_with(link.clone(), key, now_ms);
            } else {
                self.endpoints.connected_ms.insert(link.clone(), now_ms);
                self.out.add(Action::Rebuild { link: link.clone() });
            }
            self.out.log(Level::Debug, Event::LinkRebuilt { link, broker });
        }
    }

    /// Connects a broker at the address that a list named last, instead of this one.
    fn move_link(&mut self, link: &Link, to: Link, key: Option<String>, now_ms: f64) {
        let links = &mut self.endpoints;
        let broker = links.broker_of.get(link).cloned().flatten();
        let listed_ms = links.listed_ms.get(link).copied().unwrap_or(now_ms);
        links.broker_of.remove(link);
        links.broker_of.insert(to.clone(), broker.clone());
        links.listed_ms.remove(link);
        links.listed_ms.insert(to.clone(), listed_ms);
        links.connected_ms.remove(link);
        links.connected_ms.insert(to.clone(), now_ms);
        links.key_of.remove(link);
        if let Some(key) = &key {
            links.key_of.insert(to.clone(), key.clone());
        }
        self.out.add(Action::Disconnect { link: link.clone() });
        self.out.add(Action::Connect { link: to.clone(), server_key: key });
        self.out.log(Level::Info, Event::LinkMoved { link: to, broker: broker.unwrap_or_default() });
    }
}
