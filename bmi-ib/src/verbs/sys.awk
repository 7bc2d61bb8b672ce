# Reduces the output of bindgen, the last file, to what the files before it use. `sys.rs` has the
# call.
#
# - A declaration stays if those files or another declaration that stays name it.
# - The assertions of a type's size and alignment stay with it, and the assertion of a field's
#   offset if those files name the field.
# - The types of POINTED are only pointed to: they lose their fields and their assertions.

BEGIN {
    split("ibv_ah ibv_device ibv_mw_bind ibv_pd ibv_srq ibv_wq", list)
    for (at in list) POINTED[list[at]]
}

function add_words(text, set) {
    while (match(text, /[A-Za-z_][A-Za-z_0-9]*/)) {
        set[substr(text, RSTART, RLENGTH)]
        text = substr(text, RSTART + RLENGTH)
    }
}

FILENAME != ARGV[ARGC - 1] {
    sub(/\/\/.*/, "")
    add_words($0, used)
    add_words($0, needed)
    next
}

# `verbs/mod.rs` allows all that a generated file needs.
/^#\[allow/ { next }

# An assertion of an offset takes a line or two.
/"Offset of field: / {
    split($0, part, /::|"/)
    unused = !(part[3] in used)
}
unused {
    unused = !/;$/
    next
}

/^pub (const|struct|type|union) / { name = $3; sub(/:$/, "", name); hollow = name in POINTED }
/^impl / { name = $2 }
/size_of::</ { split($0, part, /size_of::<|>/); name = part[2]; hollow = 0; assertions = 1 }
hollow && /^    / { next }
hollow && /^}/ { item = item "    _unused: [u8; 0],\n" }
{ item = item $0 "\n" }

# The end of a declaration, of a block of assertions, or of a line of comment.
/^};?$|^[^ ].*;$|^\/\/|^$/ {
    if (!(assertions && name in POINTED)) {
        items[++count] = item
        names[count] = name
    }
    item = name = ""
    hollow = assertions = 0
}

END {
    do {
        more = 0
        for (at = 1; at <= count; at++)
            if (!(at in kept) && (names[at] == "" || names[at] in needed)) {
                more = kept[at] = 1
                if (names[at] != "") add_words(items[at], needed)
            }
    } while (more)
    for (at = 1; at <= count; at++) if (at in kept) printf "%s", items[at]
}
