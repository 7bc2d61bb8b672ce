//! What a picture shows: a chart of lines with their points. Nothing is drawn here.

use super::axis::Axis;

/// Width and height of a picture.
pub(super) const WIDTH: f64 = 600.0;
pub(super) const HEIGHT: f64 = 340.0;
/// The plot inside of the picture.
pub(super) const PLOT: Plot = Plot { left: 64.0, right: 478.0, top: 18.0, bottom: 296.0 };

/// A rectangle.
pub(super) struct Plot {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

impl Plot {
    /// The ends of the horizontal axis.
    pub(super) fn across(&self) -> (f64, f64) {
        (self.left, self.right)
    }

    /// The ends of the vertical axis: more is further up.
    pub(super) fn up(&self) -> (f64, f64) {
        (self.bottom, self.top)
    }
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dash {
    Solid,
    Dashed,
    Dotted,
}

/// A point of a line.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    /// The interval.
    pub(super) low: f64,
    pub(super) high: f64,
    /// What is said when somebody points at it.
    pub(super) note: String,
    /// True to draw a ring around it.
    pub(super) ringed: bool,
}

/// A line with its name.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    /// The class of its colour, and the number of its mark.
    pub(super) colour: Colour,
    pub(super) dash: Dash,
    /// The points, in the order of `x`.
    pub(super) points: Vec<Point>,
}

/// One of the colours of `style.css`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colour {
    /// One of those that can be told apart. Counted from 0, and again after [`COLOURS`].
    Number(usize),
    /// That of what is only compared with.
    Quiet,
}

/// The number of colours that can be told apart.
pub(super) const COLOURS: usize = 7;

impl Colour {
    /// Returns the class.
    pub(super) fn class(self) -> String {
        match self {
            Colour::Number(number) => format!("c{}", number % COLOURS),
            Colour::Quiet => "quiet".to_owned(),
        }
    }
}

/// A place where lines cross.
#[derive(Clone, Debug)]
pub(super) struct Crossing {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) label: String,
}

/// A picture of lines.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    /// The heading.
    pub(super) title: String,
    /// What is below the heading: the setup, what is better.
    pub(super) hint: String,
    /// What it shows, in sentences.
    pub(super) findings: Vec<String>,
    pub(super) x: Axis,
    pub(super) y: Axis,
    /// Labels a value of the vertical axis.
    pub(super) label: fn(f64) -> String,
    /// What the horizontal axis shows, and the vertical one.
    pub(super) across: String,
    pub(super) up: &'static str,
    pub(super) series: Vec<Series>,
    pub(super) crossings: Vec<Crossing>,
    /// Words above and below the line at 1, if there is such a line.
    pub(super) parted: Option<(&'static str, &'static str)>,
}
