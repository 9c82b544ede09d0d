# The server of quell_testkit::mcp, described there.
say() { printf '%s\n' "$1"; }
answer() { say '{"jsonrpc":"2.0","id":'"$1"',"result":'"$2"'}'; }
text() { answer "$1" '{"content":[{"type":"text","text":"'"$2"'"}]}'; }
huge() { printf '{"jsonrpc":"2.0","id":%s,"result":{"text":"' "$1"; head -c 17000000 /dev/zero | tr '\0' x; say '"}}'; }
progress() { say '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":'"$1"',"progress":'"$2"',"total":3}}'; }
ask() { say '{"jsonrpc":"2.0","id":"'"$1"'","method":"'"$2"'","params":'"$3"'}'; }
tool() { printf '{"name":"%s","description":"Does %s.","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}}}' "$1" "$1"; }
tools() {
    list=
    for name in echo env pid steps refuse wait decline finish deaf tick fork die flood junk grow beg shut nap huge late sorry drip hum picture ask place roots spawn dot.ted $grown; do
        list=$list,$(tool "$name")
    done
    printf '{"tools":[%s]}' "${list#,}"
}
field() {
    case $line in
    *"\"$1\":"*) rest=${line#*\"$1\":}; rest=${rest%%[,\}]*}; rest=${rest#\"}; printf '%s' "${rest%\"}" ;;
    esac
}
# A pid does not identify the server: each may be pid 2 of its own namespace.
read -r instance </proc/sys/kernel/random/uuid
linger() { while :; do sleep 60; done; }

PIXEL=iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==

# Work of a call that a cancel does not reach. It starts no process.
afterwards() {
    case $how in
    late) text "$id" 'finished in secret' ;;
    sorry) say '{"jsonrpc":"2.0","id":'"$id"',"error":{"code":0,"message":"cancelled"}}' ;;
    drip) progress "$token" 1 ;;
    hum) while :; do progress "$token" 1; n=0; while [ $n -lt 20000 ]; do n=$((n + 1)); done; done ;;
    esac
}

# Works beside the server from its start on, as the thread of a program would.
worker() {
    while read -r how id token gate <"$MCP_LOG.jobs"; do
        [ -z "$gate" ] || read -r _ <"$gate"
        afterwards
    done
}

call() {
    token=$(field progressToken)
    case $(field name) in
    echo) text "$id" "$(field text)" ;;
    env) text "$id" "$(env | sort | tr '\n' ' ' | tr -d '\\"')" ;;
    pid) text "$id" "$instance" ;;
    steps) for step in 1 2 3; do progress "$token" "$step"; done; text "$id" done ;;
    refuse) answer "$id" '{"content":[{"type":"text","text":"no such thing"}],"isError":true}' ;;
    wait | decline | finish) waiting=$id; how=$(field name) ;;
    deaf) progress "$token" 1; linger ;;
    tick) (n=0; while :; do progress "$token" $n; n=$((n + 1)); sleep 0.05; done) & ;;
    fork) (setsid sh -c 'while :; do sleep 60; done' "$(field text)" &) ; progress "$token" 1; linger ;;
    die) echo 'as the test wants' >&2; exit 3 ;;
    flood) yes '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"flood"}}' | head -n 20000; text "$id" drained ;;
    junk) say 'this is no JSON'; say '{"jsonrpc":"2.0"}'; text 4242 'for nobody'; text "$id" survived ;;
    grow) grown=grown; [ "$(field text)" != slowly ] || slow_list=1; say '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'; text "$id" grown ;;
    beg) begging=$id; replies=; ask s sampling/createMessage '{"messages":[],"maxTokens":1}'; ask r no/such/method '{}' ;;
    spawn) (setsid sh -c 'while :; do sleep 60; done' "$(field text)" &); text "$id" spawned ;;
    place) text "$id" "$(pwd) $HOME $0 $PLACE" ;;
    roots) asking=$id; ask w roots/list '{}' ;;
    ask) asking=$id; ask q elicitation/create '{"mode":"form","message":"Who are you?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}}' ;;
    huge) huge "$id" ;;
    nap) progress "$token" 1; sleep 0.4; text "$id" rested ;;
    late | sorry | drip | hum)
        gate=$(field text)
        [ -z "$gate" ] || mkfifo "$gate"
        printf '%s %s %s %s\n' "$(field name)" "$id" "$token" "$gate" >"$MCP_LOG.jobs"
        ;;
    picture) answer "$id" '{"content":[{"type":"text","text":"look"},{"type":"image","mimeType":"image/png","data":"'"$PIXEL"'"}]}' ;;
    shut) exec 0<&-; text "$id" shut; linger ;;
    dot.ted) text "$id" dotted ;;
    *) say '{"jsonrpc":"2.0","id":'"$id"',"error":{"code":-32602,"message":"unknown tool"}}' ;;
    esac
}

if [ -n "$MCP_WORKER" ]; then mkfifo "$MCP_LOG.jobs"; worker & fi
if [ -n "$MCP_STUCK" ]; then trap '' TERM; fi
while IFS= read -r line; do
    if [ -n "$MCP_LOG" ]; then printf '%s %s\n' "$(date +%s%N)" "$line" >>"$MCP_LOG"; fi
    id=$(field id)
    case $line in
    *'"method":"initialize"'*)
        [ -z "$MCP_HUGE" ] || huge "$id"
        [ -n "$MCP_MUTE$MCP_HUGE" ] || answer "$id" '{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{}},"serverInfo":{"name":"test","version":"1"}}'
        ;;
    *'"method":"ping"'*)
        if [ -n "$MCP_NO_PING" ]; then say '{"jsonrpc":"2.0","id":'"$id"',"error":{"code":-32601,"message":"no such method"}}'; else answer "$id" '{}'; fi
        ;;
    *'"method":"tools/list"'*) [ -n "$slow_list" ] || answer "$id" "$(tools)" ;;
    *'"method":"tools/call"'*) call ;;
    *'"method":"prompts/list"'*)
        answer "$id" '{"prompts":[{"name":"greet","description":"Greets.","arguments":[{"name":"who","required":true},{"name":"when"}]},{"name":"hang"}]}'
        ;;
    *'"method":"prompts/get"'*)
        case $line in *'"name":"hang"'*) ;; *)
            answer "$id" '{"messages":[{"role":"user","content":{"type":"text","text":"Greet '"$(field who)"'."}}]}' ;;
        esac
        ;;
    *'"method":"resources/list"'*) answer "$id" '{"resources":[{"uri":"note://today","name":"today","description":"The note of today."}]}' ;;
    *'"method":"resources/read"'*) answer "$id" '{"contents":[{"uri":"note://today","mimeType":"text/plain","text":"Buy milk."}]}' ;;
    *'"method":"notifications/cancelled"'*)
        if [ "$how" = finish ]; then text "$waiting" 'finished all the same'; fi
        if [ "$how" = decline ]; then say '{"jsonrpc":"2.0","id":'"$waiting"',"error":{"code":0,"message":"cancelled"}}'; fi
        ;;
    *'"roots":'*) text "$asking" "$(field uri)" ;;
    *'"action":'*) text "$asking" "$(field action) $(field name)" ;;
    *'"error":'*)
        replies="$replies $id$(field code)"
        case $replies in *' '*' '*) text "$begging" "$replies" ;; esac
        ;;
    esac
done
if [ -n "$MCP_STUCK" ]; then linger; fi
