//! A map that keeps the order of insertion, also over removals. A new value for a known key keeps its place.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

#[derive(Debug)]
pub(super) struct OrderedMap<K, V> {
    place_of: HashMap<K, u64>,
    entries: BTreeMap<u64, (K, V)>,
    next: u64,
}

impl<K, V> Default for OrderedMap<K, V> {
    fn default() -> Self {
        Self { place_of: HashMap::new(), entries: BTreeMap::new(), next: 0 }
    }
}

impl<K: Hash + Eq + Clone, V> OrderedMap<K, V> {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn contains(&self, key: &K) -> bool {
        self.place_of.contains_key(key)
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.place_of.get(key).map(|place| &self.entries[place].1)
    }

    pub fn insert(&mut self, key: K, value: V) {
        if let Some(place) = self.place_of.get(&key) {
            if let Some(entry) = self.entries.get_mut(place) {
                entry.1 = value;
            }
            return;
        }
        self.place_of.insert(key.clone(), self.next);
        self.entries.insert(self.next, (key, value));
        self.next += 1;
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let place = self.place_of.remove(key)?;
        self.entries.remove(&place).map(|(_, value)| value)
    }

    pub fn first(&self) -> Option<(&K, &V)> {
        self.entries.values().next().map(|(key, value)| (key, value))
    }

    pub fn pop_first(&mut self) -> Option<(K, V)> {
        let place = *self.entries.keys().next()?;
        let (key, value) = self.entries.remove(&place)?;
        self.place_of.remove(&key);
        Some((key, value))
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.entries.values().map(|(key, value)| (key, value))
    }

    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.entries.values().map(|(_, value)| value)
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&K, &V) -> bool) {
        let place_of = &mut self.place_of;
        self.entries.retain(|_, (key, value)| {
            let is_kept = keep(key, value);
            if !is_kept {
                place_of.remove(key);
            }
            is_kept
        });
    }

    /// All entries in their order. The map is empty afterwards.
    pub fn take(&mut self) -> Vec<(K, V)> {
        self.place_of.clear();
        std::mem::take(&mut self.entries).into_values().collect()
    }
}
