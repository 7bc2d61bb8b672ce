//! stub
/// x
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Policy {
    /// x
    #[default]
    Default,
    /// x
    Lru,
    /// x
    ScanResistant,
    /// x
    Stream,
    /// x
    Keep,
    /// x
    None,
}
pub(crate) struct Policies(Vec<usize>);
impl Policies {
    pub(crate) fn new(_d: Policy, _c: u64) -> Policies {
        Policies(vec![])
    }
    pub(crate) fn insert(&mut self, id: usize, _key: u64, _bytes: u32, _policy: Policy) {
        self.0.push(id)
    }
    pub(crate) fn touch(&mut self, id: usize, _policy: Policy) {
        self.remove(id);
        self.0.push(id)
    }
    pub(crate) fn used_up(&mut self, _id: usize) {}
    pub(crate) fn remove(&mut self, id: usize) {
        self.0.retain(|o| *o != id)
    }
    pub(crate) fn evicted(&mut self, id: usize) {
        self.remove(id)
    }
    pub(crate) fn victim(&mut self, is_free: &mut dyn FnMut(usize) -> bool) -> Option<usize> {
        self.0.iter().copied().find(|id| is_free(*id))
    }
}
