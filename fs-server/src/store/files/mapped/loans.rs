//! Which datafiles are lent, and which are being cut off.
//!
//! **Why.** A page that is cut off while it is being sent ends the connection, and with it whatever
//! its client was writing. A client must not be able to do that to another one.
//!
//! **Invariants**
//! 1. While a datafile has a loan, it is not cut off. While one is being cut off, it has no loans.
//! 2. A cut that waits lets no new loan begin, so it waits only for those that have begun.
//! 3. A cut that is given up lets loans begin again.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use fs_proto::DatafileHandle;

use crate::lock::lock;

/// The loans and cuts of all datafiles.
#[derive(Default)]
pub(in crate::store::files) struct Loans(Mutex<BTreeMap<DatafileHandle, State>>);

/// Those of one datafile.
#[derive(Default)]
struct State {
    loans: usize,
    cuts: usize,
    waiting: Vec<Waker>,
}

impl Loans {
    /// Changes the state of a datafile, and forgets it if nothing is left.
    fn with<R>(&self, datafile: DatafileHandle, change: impl FnOnce(&mut State) -> R) -> R {
        let mut all = lock(&self.0);
        let state = all.entry(datafile).or_default();
        let result = change(state);
        if state.loans == 0 && state.cuts == 0 {
            all.remove(&datafile);
        }
        result
    }

    /// Returns true if a cut waits for a loan.
    pub(super) fn any_waits(&self) -> bool {
        let all = lock(&self.0);
        all.values().any(|state| state.cuts > 0 && state.loans > 0)
    }
}

/// A loan of a datafile. It ends when this is dropped.
pub(in crate::store::files) struct FileLoan {
    loans: Arc<Loans>,
    datafile: DatafileHandle,
}

impl Drop for FileLoan {
    fn drop(&mut self) {
        let wake = self.loans.with(self.datafile, |state| {
            state.loans -= 1;
            if state.loans == 0 { std::mem::take(&mut state.waiting) } else { Vec::new() }
        });
        wake.into_iter().for_each(Waker::wake);
    }
}

/// Begins a loan, unless the datafile is being cut off.
pub(in crate::store::files) fn lend(loans: &Arc<Loans>, datafile: DatafileHandle) -> Option<FileLoan> {
    let begun = loans.with(datafile, |state| {
        let free = state.cuts == 0;
        state.loans += usize::from(free);
        free
    });
    begun.then(|| FileLoan { loans: loans.clone(), datafile })
}

/// A datafile that is being cut off, or is about to be, until this is dropped.
struct Cut {
    loans: Arc<Loans>,
    datafile: DatafileHandle,
}

impl Drop for Cut {
    fn drop(&mut self) {
        self.loans.with(self.datafile, |state| state.cuts -= 1);
    }
}

/// Waits until a datafile has no loans. It has none as long as the returned value lives.
pub(super) async fn cut(loans: &Arc<Loans>, datafile: DatafileHandle) -> impl Sized + use<> {
    loans.with(datafile, |state| state.cuts += 1);
    let cut = Cut { loans: loans.clone(), datafile };
    poll_fn(|context| {
        loans.with(datafile, |state| {
            if state.loans == 0 {
                return Poll::Ready(());
            }
            state.waiting.push(context.waker().clone());
            Poll::Pending
        })
    })
    .await;
    cut
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const FILE: DatafileHandle = DatafileHandle(1);

    #[test]
    fn a_cut_waits_for_loans_and_keeps_others_away() {
        let loans = Arc::<Loans>::default();
        let (first, second) = (lend(&loans, FILE).unwrap(), lend(&loans, FILE).unwrap());
        assert!(cut(&loans, DatafileHandle(2)).now_or_never().is_some(), "another datafile");
        let mut waits = Box::pin(cut(&loans, FILE));
        assert!(waits.as_mut().now_or_never().is_none() && loans.any_waits());
        assert!(lend(&loans, FILE).is_none() && lend(&loans, DatafileHandle(2)).is_some());
        drop(first);
        assert!(waits.as_mut().now_or_never().is_none());
        drop(second);
        let holds = waits.as_mut().now_or_never().expect("nothing is lent");
        assert!(!loans.any_waits() && lend(&loans, FILE).is_none());
        drop((holds, waits));
        let third = lend(&loans, FILE).unwrap();
        // One that is given up.
        drop(cut(&loans, FILE).now_or_never());
        assert!(lend(&loans, FILE).is_some());
        drop(third);
        assert!(loans.0.lock().unwrap().is_empty(), "nothing is left");
    }
}
