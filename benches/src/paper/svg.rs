//! Draws the curves: predicted ones in colour; published ones in black, dashed and with crosses.

use bmi_report::units;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::series::DashedLineSeries;

use super::report::{Figure, Series, Style, number};

const SIZE: (u32, u32) = (860, 500);
const FONT: (&str, i32) = ("sans-serif", 14);

/// Colours that can be distinguished, also by colour-blind readers (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 94, 240),
    RGBColor(140, 140, 0),
];

/// An error of the drawing library.
pub type Refused = Box<dyn std::error::Error + Send + Sync>;

/// Draws a figure as SVG.
///
/// # Errors
/// An error of the drawing library.
pub fn draw(figure: &Figure) -> Result<String, Refused> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        match &figure.style {
            Style::Bars(groups) => bars(&area, figure, groups)?,
            Style::Lines => lines(&area, figure, |x| x, number)?,
            Style::Sizes => lines(&area, figure, f64::log2, |x| units::size(x.exp2().round() as usize))?,
        }
        area.present()?;
    }
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Returns the least x, the greatest x, and the upper end of the y axis.
fn ranges(figure: &Figure, scale: impl Fn(f64) -> f64) -> (f64, f64, f64) {
    let points = || figure.series.iter().flat_map(|series| &series.points);
    let x = || points().map(|point| scale(point.0));
    let top = points().map(|point| point.1).fold(0.0, f64::max);
    (x().fold(f64::INFINITY, f64::min), x().fold(f64::NEG_INFINITY, f64::max), 1.08 * top.max(1e-9))
}

fn colour(at: usize, series: &Series) -> RGBColor {
    if series.published { BLACK } else { COLOURS[at % COLOURS.len()] }
}

fn lines(
    area: &Area<'_>,
    figure: &Figure,
    scale: impl Fn(f64) -> f64,
    label: impl Fn(f64) -> String,
) -> Result<(), Refused> {
    let (least, greatest, top) = ranges(figure, &scale);
    let margin = ((greatest - least) * 0.03).max(1e-9);
    let mut chart = ChartBuilder::on(area)
        .caption(&figure.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(least - margin..greatest + margin, 0.0..top)?;
    chart
        .configure_mesh()
        .x_desc(&figure.x)
        .y_desc(&figure.y)
        .x_labels(11)
        .x_label_formatter(&|x| label(*x))
        .y_label_formatter(&|y| number(*y))
        .label_style(FONT)
        .light_line_style(WHITE)
        .draw()?;
    for (at, series) in figure.series.iter().enumerate() {
        let colour = colour(at, series);
        let points = || series.points.iter().map(|point| (scale(point.0), point.1));
        let drawn = if series.published {
            chart.draw_series(points().map(|point| Cross::new(point, 5, colour.stroke_width(2))))?;
            chart.draw_series(DashedLineSeries::new(points(), 6, 4, colour.stroke_width(1)))?
        } else {
            chart.draw_series(points().map(|point| Circle::new(point, 3, colour.filled())))?;
            chart.draw_series(LineSeries::new(points(), colour.stroke_width(2)))?
        };
        drawn
            .label(series.name.clone())
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font(FONT)
        .draw()?;
    Ok(())
}

fn bars(area: &Area<'_>, figure: &Figure, groups: &[String]) -> Result<(), Refused> {
    let (_, _, top) = ranges(figure, |x| x);
    let mut chart = ChartBuilder::on(area)
        .caption(&figure.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(64)
        // The room above is for the legend.
        .build_cartesian_2d(-0.5..groups.len() as f64 - 0.5, 0.0..1.15 * top)?;
    let name = |x: &f64| {
        let near = x.round();
        let group = if (x - near).abs() < 0.01 && near >= 0.0 { groups.get(near as usize) } else { None };
        group.cloned().unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .y_desc(&figure.y)
        .x_labels(2 * groups.len() + 1)
        .x_label_formatter(&name)
        .y_label_formatter(&|y| number(*y))
        .label_style(FONT)
        .light_line_style(WHITE)
        .draw()?;
    let width = 0.8 / figure.series.len() as f64;
    for (at, series) in figure.series.iter().enumerate() {
        let colour = colour(at, series);
        let left = |x: f64| x - 0.4 + at as f64 * width;
        let style = if series.published { colour.stroke_width(2) } else { colour.filled() };
        let bar =
            |point: &(f64, f64)| Rectangle::new([(left(point.0), 0.0), (left(point.0) + 0.92 * width, point.1)], style);
        chart
            .draw_series(series.points.iter().map(bar))?
            .label(series.name.clone())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 18, y + 5)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font(FONT)
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(style: Style) -> Figure {
        let text = |text: &str| text.to_owned();
        let series = vec![
            Series::predicted("predicted", [(0.0, 1.0), (1.0, 3.0)]),
            Series::published("published", [(1.0, 2.0)]),
        ];
        Figure { name: text("f"), title: text("A title"), x: text("x"), y: text("y"), style, series }
    }

    #[test]
    fn every_style_is_drawn_with_its_words() {
        for style in [Style::Lines, Style::Sizes, Style::Bars(vec!["first".into(), "second".into()])] {
            let mut figure = figure(style);
            if matches!(figure.style, Style::Sizes) {
                figure.series.iter_mut().flat_map(|series| &mut series.points).for_each(|point| point.0 += 1024.0);
            }
            let text = draw(&figure).unwrap();
            assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
            for word in ["A title", "predicted", "published"] {
                assert!(text.contains(word), "{word} in {:?}", figure.style);
            }
            assert!(!text.contains("NaN") && !text.contains("inf"), "{:?}", figure.style);
            assert_eq!(draw(&figure).unwrap(), text, "the same figure gives the same picture");
        }
    }
}
