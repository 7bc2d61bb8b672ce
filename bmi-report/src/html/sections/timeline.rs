//! The recording of a run, drawn by a small script from Chrome's trace events.

use super::{Page, section};
use crate::html::escape;

/// The script. It only draws, and loads nothing.
const SCRIPT: &str = include_str!("../timeline.js");

/// The timeline, or nothing if the report has none.
pub(in crate::html) fn render(page: &Page<'_>) -> String {
    let Some(trace) = &page.report.timeline else { return String::new() };
    let contents = format!(
        "<noscript><p class=\"hint\">This picture needs JavaScript. The same events can be opened in \
         chrome://tracing or Perfetto: they are the field <code>timeline</code> of the report.</p></noscript>\n\
         <div id=\"trace-view\" class=\"screen\" hidden><div id=\"trace\"><canvas tabindex=\"0\" aria-label=\"timeline\"></canvas></div>\n\
         <p class=\"hint\">Wheel: zoom. Drag: move. Double click: all of it. Point at a span for its \
         name, duration and facts. With the keyboard: + and −, arrows, 0.</p></div>\n\
         <script type=\"application/json\" id=\"trace-events\">{}</script>\n<script>{SCRIPT}</script>\n",
        escape::json(trace)
    );
    section("timeline", "A run, event by event", "", &contents)
}
