" :Ask QUESTION          streams a model's answer into a window of its own
" :'<,'>Ask QUESTION     sends the lines of the range along
" :AskStop, or <C-c> in that window, stops it
"
" To install, with Vim's packages (:help packages):
"
"   cp -r examples/vim ~/.vim/pack/svir/start/ask
"   cp svir.py ~/.vim/pack/svir/start/ask/python3/vim_ask/
"
" The copy is vim_ask.svir, so a plugin with another copy is not in the way. It asks
" g:ask_url, "http://localhost:1234" by default, for the model g:ask_model; where that is not
" set, for the first chat model that the server lists. A key is taken from the environment
" variable ASK_API_KEY.
"
" Without a screen, timers fire only while the script sleeps:
"
"   vim -es -c 'Ask Why is the sky blue?' -c 'sleep 20' -c '%print' -c 'qa!'

if exists('g:loaded_ask') || !has('python3') || !has('timers')
  finish
endif
let g:loaded_ask = 1

let s:interval = 50 " milliseconds

function! s:Ask(question, lines) abort
  py3 import vim_ask
  let s:loaded = 1
  botright new
  setlocal buftype=nofile bufhidden=hide noswapfile filetype=markdown
  nnoremap <buffer> <silent> <C-c> :AskStop<CR>
  let number = bufnr()
  py3 vim_ask.ask(int(vim.eval('number')), vim.eval('a:question'), vim.eval('a:lines'))
  call timer_start(s:interval, function('s:Tick', [number]), {'repeat': -1})
endfunction

function! s:Tick(number, timer) abort
  let window = bufwinid(a:number)
  let follow = line('.', window) == line('$', window)
  if py3eval('vim_ask.tick(' .. a:number .. ')')
    call timer_stop(a:timer)
  endif
  if follow
    call win_execute(window, 'normal! G')
  endif
endfunction

function! s:Call(name) abort
  if exists('s:loaded') " else nothing was asked
    execute 'py3 vim_ask.' .. a:name .. '()'
  endif
endfunction

command! -range=0 -nargs=+ Ask call s:Ask(<q-args>, <count> ? getline(<line1>, <line2>) : [])
command! AskStop call s:Call('stop')

augroup ask
  autocmd!
  autocmd VimLeavePre * call s:Call('unload')
augroup END
