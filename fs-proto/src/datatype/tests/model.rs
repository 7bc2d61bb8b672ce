//! The model: a type as a list of single bytes, by the definitions of the standard.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::{Datatype, Distribute, GridDimension, Order, Region};

/// Most bytes of a model. Larger types are not tried.
const MOST: usize = 3000;

/// The displacements of all bytes in order, and the bounds that were set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) bytes: Vec<i64>,
    pub(super) marks: Option<(i64, i64)>,
}

impl Model {
    pub(super) fn bounds(&self) -> (i64, i64) {
        let low = self.bytes.iter().min().copied().unwrap_or(0);
        let high = self.bytes.iter().max().map_or(0, |last| last + 1);
        self.marks.unwrap_or((low, high))
    }

    pub(super) fn extent(&self) -> i64 {
        let (lb, ub) = self.bounds();
        ub - lb
    }

    /// Instances of models at displacements, in order.
    fn at<'a>(parts: impl IntoIterator<Item = (i64, &'a Model)>) -> Model {
        let mut whole = Model::default();
        for (at, part) in parts {
            whole.bytes.extend(part.bytes.iter().map(|byte| byte + at));
            if let Some((lb, ub)) = part.marks {
                let (low, high) = whole.marks.unwrap_or((i64::MAX, i64::MIN));
                whole.marks = Some((low.min(lb + at), high.max(ub + at)));
            }
        }
        whole
    }

    pub(super) fn repeat(&self, count: u64, stride: i64) -> Model {
        Model::at((0..count as i64).map(|n| (n * stride, self)))
    }

    /// Blocks: the number of instances and the displacement in bytes of each.
    fn blocks(&self, blocks: &[(u64, i64)]) -> Model {
        let blocks: Vec<_> = blocks.iter().map(|(len, at)| (*at, self.repeat(*len, self.extent()))).collect();
        Model::at(blocks.iter().map(|(at, block)| (*at, block)))
    }

    /// The elements of an array for whose index `is_chosen` returns true.
    fn array(&self, sizes: &[u64], order: Order, is_chosen: impl Fn(&[u64]) -> bool) -> Model {
        let total: u64 = sizes.iter().product();
        let mut places = Vec::new();
        for place in 0..total {
            let (mut rest, mut index) = (place, vec![0; sizes.len()]);
            let dimensions: Vec<usize> = match order {
                Order::Fortran => (0..sizes.len()).collect(),
                Order::C => (0..sizes.len()).rev().collect(),
            };
            for dimension in dimensions {
                (index[dimension], rest) = (rest % sizes[dimension], rest / sizes[dimension]);
            }
            if is_chosen(&index) {
                places.push(place as i64 * self.extent());
            }
        }
        let bytes = Model::at(places.into_iter().map(|at| (at, self))).bytes;
        Model { bytes, marks: Some((0, total as i64 * self.extent())) }
    }

    /// The lengths and places of the pieces of a list of bytes.
    pub(super) fn pieces(bytes: impl IntoIterator<Item = i64>) -> Vec<Region> {
        let mut pieces: Vec<Region> = Vec::new();
        for byte in bytes {
            match pieces.last_mut() {
                Some(last) if last.offset + last.len == byte as u64 => last.len += 1,
                _ => pieces.push(Region::new(byte as u64, 1)),
            }
        }
        pieces
    }
}

/// A call of a constructor.
#[derive(Clone, Debug)]
pub(super) enum Spec {
    Bytes(u64),
    Contiguous(u64, Box<Spec>),
    Vector(u64, u64, i64, Box<Spec>),
    Hvector(u64, u64, i64, Box<Spec>),
    Indexed(Vec<(u64, i64)>, Box<Spec>),
    Hindexed(Vec<(u64, i64)>, Box<Spec>),
    IndexedBlock(u64, Vec<i64>, Box<Spec>),
    HindexedBlock(u64, Vec<i64>, Box<Spec>),
    Structure(Vec<(u64, i64, Spec)>),
    Resized(i64, i64, Box<Spec>),
    /// Size, subsize and start of each dimension.
    Subarray(Vec<(u64, u64, u64)>, Order, Box<Spec>),
    Darray(u64, Vec<GridDimension>, Order, Box<Spec>),
}

impl Spec {
    /// Calls the constructors, here and on the model. Returns nothing if that is too large.
    pub(super) fn build(&self) -> Option<(Datatype, Model)> {
        let (datatype, model) = match self {
            Spec::Bytes(len) => {
                (Datatype::bytes(*len), Model { bytes: (0..*len as i64).collect(), ..Model::default() })
            }
            Spec::Contiguous(count, old) => {
                let (old, model) = old.build()?;
                (Datatype::contiguous(*count, &old), model.repeat(*count, model.extent()))
            }
            Spec::Vector(count, len, stride, old) => {
                let (old, model) = old.build()?;
                let block = model.repeat(*len, model.extent());
                (Datatype::vector(*count, *len, *stride, &old), block.repeat(*count, stride * model.extent()))
            }
            Spec::Hvector(count, len, stride, old) => {
                let (old, model) = old.build()?;
                let block = model.repeat(*len, model.extent());
                (Datatype::hvector(*count, *len, *stride, &old), block.repeat(*count, *stride))
            }
            Spec::Indexed(blocks, old) => {
                let (old, model) = old.build()?;
                let in_bytes: Vec<_> = blocks.iter().map(|(len, at)| (*len, at * model.extent())).collect();
                (Datatype::indexed(blocks, &old), model.blocks(&in_bytes))
            }
            Spec::Hindexed(blocks, old) => {
                let (old, model) = old.build()?;
                (Datatype::hindexed(blocks, &old), model.blocks(blocks))
            }
            Spec::IndexedBlock(len, places, old) => {
                let (old, model) = old.build()?;
                let blocks: Vec<_> = places.iter().map(|at| (*len, at * model.extent())).collect();
                (Datatype::indexed_block(*len, places, &old), model.blocks(&blocks))
            }
            Spec::HindexedBlock(len, places, old) => {
                let (old, model) = old.build()?;
                let blocks: Vec<_> = places.iter().map(|at| (*len, *at)).collect();
                (Datatype::hindexed_block(*len, places, &old), model.blocks(&blocks))
            }
            Spec::Structure(fields) => {
                let built: Option<Vec<_>> = fields.iter().map(|(_, _, old)| old.build()).collect();
                let built = built?;
                let fields: Vec<_> = fields.iter().zip(&built).collect();
                let ours: Vec<_> = fields.iter().map(|((len, at, _), (old, _))| (*len, *at, old)).collect();
                let models = fields.iter().map(|((len, at, _), (_, old))| (*at, old.repeat(*len, old.extent())));
                let models: Vec<_> = models.collect();
                (Datatype::structure(&ours), Model::at(models.iter().map(|(at, model)| (*at, model))))
            }
            Spec::Resized(lb, extent, old) => {
                let (old, model) = old.build()?;
                (Datatype::resized(*lb, *extent, &old), Model { marks: Some((*lb, lb + extent)), ..model })
            }
            Spec::Subarray(dimensions, order, old) => {
                let (old, model) = old.build()?;
                let part = |f: fn(&(u64, u64, u64)) -> u64| dimensions.iter().map(f).collect::<Vec<_>>();
                let (sizes, subsizes, starts) = (part(|d| d.0), part(|d| d.1), part(|d| d.2));
                let is_chosen = |index: &[u64]| {
                    let mut all = index.iter().zip(dimensions);
                    all.all(|(index, (_, subsize, start))| (*start..start + subsize).contains(index))
                };
                let model = model.array(&sizes, *order, is_chosen);
                (Datatype::subarray(&sizes, &subsizes, &starts, *order, &old), model)
            }
            Spec::Darray(rank, grid, order, old) => {
                let (old, model) = old.build()?;
                let ranks: u64 = grid.iter().map(|dimension| dimension.processes).product();
                let (rank, mut rest, mut coordinates) = (rank % ranks, rank % ranks, Vec::new());
                for dimension in grid.iter().rev() {
                    coordinates.insert(0, rest % dimension.processes);
                    rest /= dimension.processes;
                }
                let is_chosen = |index: &[u64]| {
                    let mut all = index.iter().zip(grid).zip(&coordinates);
                    all.all(|((index, dimension), own)| owner(dimension, *index) == *own)
                };
                let sizes: Vec<u64> = grid.iter().map(|dimension| dimension.elements).collect();
                (Datatype::darray(rank, grid, *order, &old), model.array(&sizes, *order, is_chosen))
            }
        };
        let is_small = model.bytes.len() <= MOST && model.extent() >= 0;
        is_small.then(|| (datatype.expect("a type within the limits"), model))
    }
}

/// The coordinate of the process that has an element of a dimension.
fn owner(dimension: &GridDimension, index: u64) -> u64 {
    match dimension.distribute {
        Distribute::None => 0,
        Distribute::Block(block) => index / block.unwrap_or(dimension.elements.div_ceil(dimension.processes)),
        Distribute::Cyclic(block) => index / block.unwrap_or(1) % dimension.processes,
    }
}

fn grid_dimension() -> impl Strategy<Value = GridDimension> {
    (1..8u64, 1..4u64, 0..3u64, 0..5usize).prop_map(|(elements, processes, extra, kind)| {
        let even = elements.div_ceil(processes);
        let (distribute, processes) = match kind {
            0 => (Distribute::None, 1),
            1 => (Distribute::Block(None), processes),
            2 => (Distribute::Block(Some(even + extra)), processes),
            3 => (Distribute::Cyclic(None), processes),
            _ => (Distribute::Cyclic(Some(1 + extra)), processes),
        };
        GridDimension { elements, distribute, processes }
    })
}

/// A number up to `most`, and rarely 0.
fn some(most: u64) -> impl Strategy<Value = u64> {
    (0..10 * most).prop_map(move |n| if n == 0 { 0 } else { 1 + n % most })
}

/// A small type of any kind.
pub(super) fn spec() -> impl Strategy<Value = Spec> {
    let order = || prop_oneof![Just(Order::C), Just(Order::Fortran)];
    some(8).prop_map(Spec::Bytes).prop_recursive(5, 48, 4, move |old| {
        let one = old.clone().prop_map(Box::new);
        let blocks = || vec((some(3), -20..60i64), 0..10);
        // Regular and adjacent ones are what the normal form is about.
        let places = || {
            let regular = (-20..20i64, -9..9i64, 0..10i64);
            let regular = regular.prop_map(|(first, step, count)| (0..count).map(|n| first + n * step).collect());
            prop_oneof![vec(-20..60i64, 0..10), regular]
        };
        let dimension = (1..5u64, 0..5u64, 0..5u64).prop_map(|(size, subsize, start)| {
            let subsize = 1 + subsize % size;
            (size, subsize, start % (size - subsize + 1))
        });
        prop_oneof![
            (some(4), one.clone()).prop_map(|(count, old)| Spec::Contiguous(count, old)),
            (some(4), some(3), -5..6i64, one.clone()).prop_map(|(n, len, by, old)| Spec::Vector(n, len, by, old)),
            (some(4), some(3), -40..40i64, one.clone()).prop_map(|(n, len, by, old)| Spec::Hvector(n, len, by, old)),
            (blocks(), one.clone()).prop_map(|(blocks, old)| Spec::Indexed(blocks, old)),
            (blocks(), one.clone()).prop_map(|(blocks, old)| Spec::Hindexed(blocks, old)),
            (some(3), places(), one.clone()).prop_map(|(len, places, old)| Spec::IndexedBlock(len, places, old)),
            (some(3), places(), one.clone()).prop_map(|(len, places, old)| Spec::HindexedBlock(len, places, old)),
            vec((some(2), -20..60i64, old), 0..6).prop_map(Spec::Structure),
            (-9..9i64, 0..60i64, one.clone()).prop_map(|(lb, extent, old)| Spec::Resized(lb, extent, old)),
            (vec(dimension, 1..4), order(), one.clone()).prop_map(|(all, order, old)| Spec::Subarray(all, order, old)),
            (0..64u64, vec(grid_dimension(), 1..4), order(), one)
                .prop_map(|(rank, grid, order, old)| Spec::Darray(rank, grid, order, old)),
        ]
    })
}

/// A type whose bytes are in order, in a file: what views are made of.
pub(super) fn ascending() -> impl Strategy<Value = Spec> {
    (1..9u64).prop_map(Spec::Bytes).prop_recursive(4, 24, 4, |old| {
        // Bounds that were set may be narrower than the bytes: those of another field of a struct.
        let old = old.prop_filter_map("too large", |spec| {
            spec.build().map(|(built, _)| (spec, built.true_ub().max(built.ub())))
        });
        let hvector = (1..5u64, 0..9i64, old.clone())
            .prop_map(|(count, gap, (spec, end))| Spec::Hvector(count, 1, end + gap, Box::new(spec)));
        let structure = vec((0..9i64, old.clone()), 1..4).prop_map(|fields| {
            let mut at = 0;
            let place = |(gap, (spec, end))| {
                let field = (1, at + gap, spec);
                at += gap + end;
                field
            };
            Spec::Structure(fields.into_iter().map(place).collect())
        });
        let dimension = (1..5u64, 0..5u64, 0..5u64).prop_map(|(size, subsize, start)| {
            let subsize = 1 + subsize % size;
            (size, subsize, start % (size - subsize + 1))
        });
        let resized = (0..9i64, old).prop_map(|(gap, (spec, end))| Spec::Resized(0, end + gap, Box::new(spec)));
        let subarray =
            (vec(dimension, 1..4), resized.clone()).prop_map(|(all, old)| Spec::Subarray(all, Order::C, Box::new(old)));
        prop_oneof![hvector, structure, resized, subarray]
    })
}
