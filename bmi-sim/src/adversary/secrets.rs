//! Looks for many secrets in many bytes.

use std::collections::BTreeMap;

/// Bytes by which a secret is looked up.
const KEY: usize = 8;

/// The secrets that are looked for.
pub(super) struct Secrets<'a> {
    secrets: Vec<&'a [u8]>,
    /// The numbers of the secrets, by their first bytes.
    by_key: BTreeMap<&'a [u8], Vec<usize>>,
    /// Whether a secret begins with these two bytes: most places need no look at the map.
    begins: Vec<bool>,
}

impl<'a> Secrets<'a> {
    /// # Panics
    /// If one is shorter than 8 bytes: it would be found by chance.
    pub(super) fn new(secrets: &[&'a [u8]]) -> Secrets<'a> {
        let mut all = Secrets { secrets: secrets.to_vec(), by_key: BTreeMap::new(), begins: vec![false; 1 << 16] };
        for (number, secret) in secrets.iter().enumerate() {
            assert!(secret.len() >= KEY, "a secret of {} bytes is found by chance", secret.len());
            all.by_key.entry(&secret[..KEY]).or_default().push(number);
            all.begins[Secrets::first(secret)] = true;
        }
        all
    }

    fn first(bytes: &[u8]) -> usize {
        usize::from(bytes[0]) << 8 | usize::from(bytes[1])
    }

    /// Returns the numbers of the secrets that are in some bytes.
    pub(super) fn found_in(&self, bytes: &[u8]) -> impl Iterator<Item = usize> {
        let places = bytes.windows(KEY).enumerate().filter(|(_, key)| self.begins[Secrets::first(key)]);
        let candidates = places.filter_map(|(at, key)| Some((at, self.by_key.get(key)?)));
        candidates.flat_map(move |(at, numbers)| {
            numbers.iter().copied().filter(move |number| bytes[at..].starts_with(self.secrets[*number]))
        })
    }
}
