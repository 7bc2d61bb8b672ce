//! The processor of a node: cores, tasks that wait for one, locks and the memory bus; where the
//! time went. Ways in: [`Cpu`]; `Core::charge`, `charge_copy`, `charge_kernel`, `dma` and `locked`.

mod calendar;
mod charge;
mod cpu;
mod load;
mod locks;
#[cfg(test)]
mod tests;
mod usage;

pub(crate) use cpu::{Cpu, Slice, Work};
pub use load::Load;
pub(crate) use load::over;
pub use usage::Usage;
