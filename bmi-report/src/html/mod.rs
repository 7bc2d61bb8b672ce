//! A report as one page that a stranger can read: the answer, then the pictures, then everything.
//!
//! **Why.** A page is passed on, opened years later, and printed. So it is one file without outside
//! loads. The pictures are SVG that is made here, and not by a script: only the timeline and the
//! read-outs need JavaScript.
//!
//! **Invariants**
//! 1. The page loads nothing. A policy in its head forbids it besides.
//! 2. Each text of a report is escaped (`escape`). A report may come from somebody else.
//! 3. The first screen has the title, the answer in sentences ([`crate::answer`]), the hosts, and
//!    the pictures of the first tests.
//!
//! | module | what is there |
//! |---|---|
//! | `chart`, `axis`, `palette` | what a picture shows |
//! | `lines`, `bars` | how it is drawn |
//! | `sections` | the parts of the page |
//! | `comparison` | the page of two reports that are compared |
//! | `style.css`, `timeline.js`, `read_out.js` | how it looks, light, dark and printed; the scripts |

mod axis;
mod bars;
mod chart;
mod comparison;
mod escape;
mod lines;
mod palette;
mod sections;

pub use comparison::render_comparison;

use crate::answer;
use crate::groups;
use crate::report::Report;
use palette::Palette;
use sections::{Page, facts, figures, more, paths, speed, stages, strips, timeline};

const STYLE: &str = include_str!("style.css");
const READ_OUT: &str = include_str!("read_out.js");
/// What the browser is allowed to do: nothing but what is in the page.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// Formats a report as a page.
pub fn render(report: &Report) -> String {
    let groups = groups::groups(report);
    let parts = groups::parts(&groups);
    let page = Page { report, groups: &groups, parts: &parts, palette: Palette::of(report) };
    let sections = [
        speed::values(&page),
        speed::ratios(&page),
        speed::processor(&page),
        more::distribution(&page),
        more::offered(&page),
        strips::render(&page),
        paths::crossovers(&page),
        stages::render(&page),
        timeline::render(&page),
        figures::render(&page),
        facts::notes(&page),
        facts::hosts(&page),
        facts::repeat(&page),
        facts::words(),
    ];
    let title = if report.title.is_empty() { answer::title(report) } else { report.title.clone() };
    let header = format!("{}{}", answer(&page), facts::hosts_in_brief(report));
    document(&title, &header, &sections)
}

/// Makes a page of its title, what is below the title, and sections, of which some may be empty.
fn document(title: &str, header: &str, sections: &[String]) -> String {
    let title = escape::text(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <title>{title}</title>\n<style>{STYLE}</style></head>\n<body>\n\
         <header><h1>{title}</h1>\n{header}</header>\n{}<main>\n{}</main>\n\
         <script>{READ_OUT}</script>\n</body></html>\n",
        contents(sections),
        sections.concat(),
    )
}

/// The answer. That a run was interrupted stands out.
fn answer(page: &Page<'_>) -> String {
    let sentences = answer::sentences(page.report, page.groups);
    let is_warning = |number: usize| number == 0 && page.report.interrupted.is_some();
    let item = |(number, sentence): (usize, &String)| {
        let class = if is_warning(number) { " class=\"warning\"" } else { "" };
        format!("<li{class}>{}</li>\n", escape::figures(sentence))
    };
    format!("<ul class=\"answer\">\n{}</ul>\n", sentences.iter().enumerate().map(item).collect::<String>())
}

/// Links to the sections that the page has.
fn contents(sections: &[String]) -> String {
    let link = |section: &String| {
        let id = section.strip_prefix("<section id=\"")?.split('"').next()?;
        let title = section.split("<h2>").nth(1)?.split("</h2>").next()?;
        Some(format!("<a href=\"#{id}\">{title}</a>\n"))
    };
    format!("<nav class=\"screen\">{}</nav>\n", sections.iter().filter_map(link).collect::<String>())
}
