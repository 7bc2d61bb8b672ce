# Reduces the output of bindgen, the last file, to what the files before it use. `sys.rs` has the
# call.
#
# - A declaration stays if those files or another declaration that stays name it.
# - The assertions of a type become a line or two of `layout!`: its size, its alignment, and the
#   offsets of the fields that those files name.
# - The types of POINTED are only pointed to: they lose their fields and their assertions. So do
#   the calls of a context's table that those files do not name.
# - The functions of the library become a list for `library!`, which declares and loads them.

BEGIN {
    split("ibv_ah ibv_device ibv_mw_bind ibv_pd ibv_srq ibv_wq", list)
    for (at in list) POINTED[list[at]]
    names[0] = ""
}

function add_words(text, set) {
    while (match(text, /[A-Za-z_][A-Za-z_0-9]*/)) {
        set[substr(text, RSTART, RLENGTH)]
        text = substr(text, RSTART + RLENGTH)
    }
}

# Returns what follows `mark` in `text`, up to one of the characters of `end`.
function after(text, mark, end) {
    text = substr(text, index(text, mark) + length(mark))
    match(text, "[" end "]")
    return substr(text, 1, RSTART - 1)
}

function end_item() {
    items[++count] = item
    names[count] = name
    item = name = ""
    hollow = 0
}

# Adds an entry to a `layout!`, on a new line if the line would be too long.
function entry(text) {
    if (length(line) + length(text) > 98) {
        item = item line "\n"
        line = "   "
    }
    line = line " " text
}

FILENAME != ARGV[ARGC - 1] {
    sub(/\/\/.*/, "")
    add_words($0, used)
    add_words($0, needed)
    next
}

# `verbs/mod.rs` allows all that a generated file needs.
/^#\[allow/ { next }

/^const _: \(\) = \{/ { block = 1; line = ""; next }
block && /"Size of / { name = after($0, "\"Size of ", "\"") }
block && / - [0-9]+usize\];$/ {
    value = after($0, " - ", "u")
    if (/size_of::</) line = "layout!(" name ", " value ","
    else if (/align_of::</) line = line " " value
    else {
        field = after($0, "offset_of!(" name ", ", ")")
        if (field in used) {
            line = line (fields++ ? "," : ";")
            entry(field " " value)
        }
    }
    next
}
block && /^};/ {
    item = name in POINTED ? "" : item line ");\n"
    block = fields = 0
    end_item()
    next
}
block { next }

/^pub (const|struct|type|union) / { name = $3; sub(/:$/, "", name); hollow = name in POINTED }
/^layout!/ { name = after($0, "(", ",") }
/^pub struct Ibverbs/ { $0 = "library! {"; library = 1 }
/^impl Ibverbs/ { skips = 1 }
skips { skips = !/^}/; item = ""; next }
library && /__library/ { next }
library { sub(/^    pub /, "    ") }
hollow && /^    / { next }
hollow && /^}/ { item = item "    _unused: [u8; 0],\n" }

# A call of the table that is not named.
name == "ibv_context_ops" && /^    pub / {
    field = after($0, "pub ", ":")
    if (!(field in used)) {
        item = item "    pub " field ": *mut ::core::ffi::c_void,\n"
        unnamed = !/,$/
        next
    }
}
unnamed { unnamed = !/^    [^ ].*,$|^        .*>,$/; next }
{ item = item $0 "\n" }

# The end of a declaration, or of a line of comment.
/^}$|^[^ ].*;$|^ .*\);$|^\/\/|^$/ {
    library = 0
    end_item()
}

END {
    do {
        more = 0
        for (at = 1; at <= count; at++)
            if (!(at in kept) && (names[at] == "" || names[at] in needed)) {
                more = kept[at] = 1
                if (names[at] != "" || items[at] ~ /^library/) add_words(items[at], needed)
            }
    } while (more)
    for (at = 1; at <= count; at++) if (at in kept) printf "%s", items[at]
}
